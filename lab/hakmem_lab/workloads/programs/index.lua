-- Tables and strings over a log. Usage: lua5.4 index.lua FILE
local index, count = {}, {}
local number = 0
for line in io.lines(arg[1]) do
  number = number + 1
  for word in line:gmatch("%S+") do
    local entry = index[word]
    if not entry then
      entry = { lines = {}, text = word:upper() }
      index[word] = entry
    end
    entry.lines[#entry.lines + 1] = number .. ":" .. #line
    count[word] = (count[word] or 0) + 1
  end
end
local names = {}
for word in pairs(index) do names[#names + 1] = word end
table.sort(names, function(a, b) return count[a] > count[b] or (count[a] == count[b] and a < b) end)
for i = 1, 100 do print(names[i], count[names[i]], table.concat(index[names[i]].lines, ",", 1, 3)) end
