-- For wrk: every answer must be the whole of the file that its first argument names. Each thread counts what is not;
-- the sums go to a file, because what wrk prints itself does not tell the kinds of errors apart.
local threads = {}

function setup(thread)
  table.insert(threads, thread)
end

function init(arguments)
  local file = assert(io.open(arguments[1], "rb"))
  expected = file:read("*a")
  file:close()
  right, wrong = 0, 0
end

function response(status, _headers, body)
  if status == 200 and body == expected then
    right = right + 1
  else
    wrong = wrong + 1
  end
end

function done(summary)
  local sums = { right = 0, wrong = 0 }
  for _, thread in ipairs(threads) do
    sums.right = sums.right + thread:get("right")
    sums.wrong = sums.wrong + thread:get("wrong")
  end
  for _, kind in ipairs({ "connect", "read", "write", "timeout" }) do
    sums[kind] = summary.errors[kind]
  end
  local file = assert(io.open("wrk.sums", "w"))
  for kind, count in pairs(sums) do
    file:write(kind, " ", count, "\n")
  end
  file:close()
end
