# The server of http_load.py for puma: one process with threads.
require 'json'
require 'zlib'
require 'digest'
require 'erb'

SESSIONS = {}
LOCK = Mutex.new
PAGE = ERB.new(<<~'END', trim_mode: '<>')
  <html><body><table>
  <% count.times do |i| %>
  <tr><td><%= i %></td><td class="name">article <%= i * 7919 % 1000 %></td><td><%= i * 31 % 97 %>.00</td></tr>
  <% end %>
  </table></body></html>
END

def page(count) = PAGE.result(binding)

def order(text)
  given = JSON.parse(text)
  lines = given['lines'].map do |line|
    line.merge('total' => line['count'] * line['price'], 'words' => line['note'].split(' '))
  end
  sum = lines.sum { |line| line['total'] }
  JSON.generate('id' => Digest::SHA256.hexdigest(text), 'customer' => given['customer'], 'lines' => lines, 'sum' => sum)
end

run(lambda do |env|
  _, kind, name = env['PATH_INFO'].split('/')
  body =
    case kind
    when 'page' then Zlib.deflate(page(name.to_i))
    when 'blob' then 'blob' * (name.to_i / 4)
    when 'orders' then Zlib.deflate(order(env['rack.input'].read))
    else
      if env['REQUEST_METHOD'] == 'PUT'
        data = env['rack.input'].read
        LOCK.synchronize { SESSIONS[name] = data }
        "kept\n"
      else
        LOCK.synchronize { SESSIONS[name] }
      end
    end
  [200, { 'Content-Length' => body.bytesize.to_s }, [body]]
end)
