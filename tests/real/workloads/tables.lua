-- Tables, closures and strings: a word index built, queried, and dropped again and again.
-- Prints one checksum that depends on the size only. Usage: lua tables.lua [SIZE]
local size = math.tointeger(tonumber(arg[1] or "10"))
if not size or size < 1 then
  io.stderr:write("tables.lua: '", tostring(arg[1]), "' is not a size\n")
  os.exit(2)
end

local state = 12345
local function below(bound)
  state = (state * 1103515245 + 12345) % 2147483648
  return (state >> 8) % bound
end

local words = {}
for i = 1, 3000 do
  words[i] = string.rep(string.char(97 + i % 26), 1 + i % 9) .. i
end

local function make_line()
  local parts = {}
  for i = 1, 5 + below(20) do
    parts[i] = words[1 + below(#words)]
  end
  return table.concat(parts, " ")
end

local function index_lines(lines)
  local index = {}
  for number, line in ipairs(lines) do
    for word in line:gmatch("%S+") do
      local entry = index[word]
      if not entry then
        entry = { count = 0, lines = {} }
        index[word] = entry
      end
      entry.count = entry.count + 1
      entry.lines[#entry.lines + 1] = number
    end
  end
  return index
end

local checksum = 7
local function mix(text)
  for i = 1, #text do
    checksum = (checksum * 31 + text:byte(i)) % 4294967291
  end
end

for _ = 1, size do
  local lines = {}
  for i = 1, 2500 do
    lines[i] = make_line()
  end
  local index, names = index_lines(lines), {}
  for word, entry in pairs(index) do
    names[#names + 1] = string.format("%06d:%s:%d", entry.count, word, entry.lines[#entry.lines])
  end
  table.sort(names)
  mix(table.concat(names, ",", 1, math.min(#names, 400)))
  local upper = lines[1 + below(#lines)]:upper():gsub("%d+", function(digits) return "<" .. digits .. ">" end)
  mix(upper)
end
print(string.format("tables size=%d checksum=%d", size, checksum))
