# echo.rb server PORT: a thread per connection. echo.rb client PORT COUNT: compares what comes back.
require 'socket'

def serve(port)
  listener = TCPServer.new('127.0.0.1', port)
  listener.listen(128)
  loop do
    Thread.new(listener.accept) do |connection|
      # By sendfile(2) and the like where Ruby thinks it can.
      IO.copy_stream(connection, connection)
      connection.close
    end
  end
end

def ask(port, count)
  random = Random.new(count)
  threads = 4.times.map do |t|
    Thread.new do
      (count / 4).times do |n|
        data = random.bytes([1, 100, 5000, 70_000, 400_000][(n + t) % 5])
        connection = TCPSocket.new('127.0.0.1', port)
        writer = Thread.new do
          connection.write(data)
          connection.close_write
        end
        got = connection.read
        writer.join
        connection.close
        abort "wrong: #{got.bytesize} of #{data.bytesize} bytes" unless got == data
      end
    end
  end
  threads.each(&:join)
  puts 'fine'
end

Thread.abort_on_exception = true
trap('TERM') { exit!(0) }
ARGV[0] == 'server' ? serve(ARGV[1].to_i) : ask(ARGV[1].to_i, ARGV[2].to_i)
