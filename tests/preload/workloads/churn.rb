# Hashes, arrays, strings, regular expressions, compaction by the collector, threads, fork and compressed data.
require 'digest'
require 'json'
require 'zlib'

$stdout.sync = true

def table(seed, count)
  state = seed
  table = {}
  count.times do |i|
    state = (state * 1103515245 + 12345) % 2147483648
    key = "key#{state % 3000}"
    if (i % 5).zero?
      table.delete(key)
    else
      entry = (table[key] ||= { 'list' => [], 'text' => +'' })
      entry['list'] << 'v' * (state % 200)
      entry['text'] << state.to_s
    end
  end
  table
end

def digest(table)
  text = table.sort.map { |key, entry| "#{key}=#{entry['text']}:#{entry['list'].map(&:size).sort.join(',')};" }.join
  matches = text.scan(/\d{3}7/).size
  "#{Digest::SHA256.hexdigest(text)} #{matches} #{text.gsub(/\d+/) { |digits| digits.size.to_s }.size}"
end

puts "main #{digest(table(1, 60_000))}"
puts "copy #{digest(JSON.parse(JSON.generate(table(2, 20_000))))}"
puts "marshal #{digest(Marshal.load(Marshal.dump(table(3, 20_000))))}"

packed = Zlib::Deflate.deflate(Marshal.dump(table(4, 20_000)), 9)
puts "zlib #{digest(Marshal.load(Zlib::Inflate.inflate(packed)))}"
GC.start
GC.compact if GC.respond_to?(:compact)

puts((1..4).map { |seed| Thread.new { "thread #{seed} #{digest(table(seed, 8_000))}" } }.map(&:value))

(1..3).each do |seed|
  reader, writer = IO.pipe
  child = fork do
    reader.close
    writer.write(digest(table(seed, 8_000)))
    writer.close
  end
  writer.close
  puts "child #{seed} #{reader.read}"
  Process.wait(child)
  raise "child ended with #{$?}" unless $?.success?
end
