# Strings, symbols, hashes and arrays over a log. Usage: ruby index.rb FILE
count = Hash.new(0)
pages = Hash.new { |hash, key| hash[key] = [] }
File.foreach(ARGV[0]).with_index do |line, number|
  line.split.each { |word| count[word] += 1; pages[word[0, 3]] << "#{number}:#{word.reverse}" }
  pages.delete(line[0, 3]) if number % 50 == 0
end
count.sort_by { |word, n| [-n, word] }.first(100).each { |word, n| puts "#{word} #{n}" }
puts pages.map { |key, found| "#{key}#{found.sort.uniq.size}" }.sort.join(" ")
