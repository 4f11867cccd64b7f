# Strings, hashes, threads, fibers, Marshal, JSON, zlib and fork. Prints checksums only. Parts run under GC.stress, where
# every allocation of an object collects, so that freed objects' memory is used again at once.
require 'digest'
require 'json'
require 'zlib'

ROUNDS = Integer(ARGV.fetch(0))

# A generator of our own: the same numbers in every version of Ruby.
class Chance
  def initialize(seed)
    @state = seed * 2_654_435_761 + 1
  end

  def below(limit)
    @state = (@state * 6_364_136_223_846_793_005 + 1_442_695_040_888_963_407) & 0xffff_ffff_ffff_ffff
    (@state >> 33) % limit
  end
end

def table(seed, count)
  chance = Chance.new(seed)
  table = {}
  count.times do |i|
    key = "key#{chance.below(count / 3 + 1)}"
    case i % 5
    when 0 then table.delete(key)
    when 1 then table[key] = Array.new(chance.below(60)) { |n| n * seed }
    when 2 then table[key] = 'x' * chance.below(3000)
    when 3 then (table[key] = table[key].to_s + i.to_s).gsub!(/(\d)x/, '<\1>')
    else table[key] = { i => i.to_s, 'list' => (0..chance.below(9)).to_a }
    end
  end
  table
end

def digest(value)
  Digest::SHA256.hexdigest(Marshal.dump(value))[0, 16]
end

def round_trips(table)
  text = JSON.generate(table)
  packed = Zlib::Deflate.deflate(text, 6)
  raise 'zlib changed the text' unless Zlib::Inflate.inflate(packed) == text.b
  raise 'JSON changed the table' unless JSON.generate(JSON.parse(text)) == text
  raise 'Marshal changed the table' unless Marshal.load(Marshal.dump(table)) == table
  [text.bytesize, packed.bytesize]
end

def in_threads(round)
  Array.new(6) { |n| Thread.new { digest(table(round * 10 + n, 400)) } }.map(&:value)
end

def in_fibers(round)
  fibers = Array.new(200) do |n|
    Fiber.new do
      kept = []
      8.times do |i|
        kept << ('f' * (n * i % 700))
        Fiber.yield kept.sum(&:size)
      end
      round
    end
  end
  Array.new(8) { fibers.map(&:resume).sum }
end

def stressed(round)
  GC.stress = true
  digest(table(round, 60))
ensure
  GC.stress = false
end

def forked(seed)
  reader, writer = IO.pipe
  pid = fork do
    reader.close
    writer.write(digest(table(seed, 3000)))
    writer.close
  end
  writer.close
  text = reader.read
  Process.wait(pid)
  raise "a child ended with #{$?}" unless $?.success?
  text
end

ROUNDS.times do |round|
  big = table(round, 4000)
  puts [round, digest(big), *round_trips(big)].join(' ')
  puts in_threads(round).join(' '), in_fibers(round).join(' ') if (round % 4).zero?
  puts stressed(round) if (round % 10).zero?
  GC.compact if round % 15 == 7
  puts forked(round) if round % 10 == 5
end
