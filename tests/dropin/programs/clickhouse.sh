# clickhouse-server clickhouse-server, clickhouse-client clickhouse-client
# A column store: half a million rows inserted, grouped, joined, sorted, merged.
mkdir -p data tmp
cat > users.xml << END
<yandex><profiles><default><max_threads>2</max_threads><max_memory_usage>3000000000</max_memory_usage></default></profiles>
<users><default><password></password><networks><ip>::/0</ip></networks><profile>default</profile><quota>default</quota></default></users>
<quotas><default></default></quotas></yandex>
END
cat > config.xml << END
<yandex><logger><level>warning</level><log>$PWD/log</log><errorlog>$PWD/errors</errorlog></logger>
<http_port>$PORT</http_port><tcp_port>$((PORT + 1))</tcp_port><listen_host>127.0.0.1</listen_host>
<path>$PWD/data/</path><tmp_path>$PWD/tmp/</tmp_path><users_config>$PWD/users.xml</users_config>
<default_profile>default</default_profile><default_database>default</default_database>
<mark_cache_size>100000000</mark_cache_size><uncompressed_cache_size>100000000</uncompressed_cache_size></yandex>
END
clickhouse-server --config-file=config.xml > out 2>&1 &
server=$!
trap 'kill $server' EXIT
ask() { clickhouse-client --host 127.0.0.1 --port $((PORT + 1)) --query "$1"; }
for turn in $(seq 200); do ask 'select 1' > /dev/null 2>&1 && break; sleep 0.1; done
ask 'create table t (d Date, k UInt32, s String, f Float64) engine = MergeTree(d, (k, s), 8192)'
for part in 1 2 3 4 5; do
  ask "insert into t select toDate('2020-01-01') + number % 200, number * 7919 % 10007, concat('text', toString(number % 1000)), number / 3 from (select * from system.numbers limit 100000)"
done
ask 'optimize table t'
ask 'select count(), sum(k), uniqExact(s), round(sum(f)) from t'
ask 'select s, count() as c, max(k), quantileExact(0.9)(f) from t group by s order by s' | cksum
ask 'select k, groupArray(s) from (select * from t order by k, s, f limit 20000) group by k order by k' | cksum
ask 'select count() from (select k from t) any inner join (select k, max(f) as m from t group by k) using k'
