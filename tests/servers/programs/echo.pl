# echo.pl server PORT: a process per connection, as inetd's heirs have it. echo.pl client PORT COUNT: compares.
use strict;
use warnings;
use IO::Select;
use IO::Socket::INET;

my ($what, $port, $count) = @ARGV;

sub serve {
    my $listener = IO::Socket::INET->new(LocalAddr => '127.0.0.1', LocalPort => $port, Listen => 128, ReuseAddr => 1)
        or die "listen: $!";
    $SIG{CHLD} = 'IGNORE';
    while (1) {
        my $connection = $listener->accept or next;
        my $pid = fork // die "fork: $!";
        if ($pid) {
            close $connection;
            next;
        }
        close $listener;
        $connection->autoflush(1);
        my $data;
        # Perl's own buffered output, and reads past its buffer.
        while (sysread $connection, $data, 30000) {
            print $connection $data or exit 1;
        }
        exit 0;
    }
}

sub ask {
    for my $n (1 .. $count) {
        my $connection = IO::Socket::INET->new(PeerAddr => '127.0.0.1', PeerPort => $port, Timeout => 30) or die "connect: $!";
        my $data = join '', map { pack 'N', $_ * $n } 0 .. (0, 10, 1000, 30000)[$n % 4];
        my ($sent, $got) = (0, '');
        $connection->blocking(0);
        my ($read, $write) = (IO::Select->new($connection), IO::Select->new($connection));
        while (1) {
            my ($r, $w) = IO::Select->select($read, $sent < length $data ? $write : undef, undef, 30);
            die "wrong: nothing happens\n" unless $r or $w;
            if (@{ $w // [] }) {
                $sent += syswrite($connection, $data, length($data) - $sent, $sent) // 0;
                shutdown $connection, 1 if $sent == length $data;
            }
            if (@{ $r // [] }) {
                my $n = sysread $connection, $got, 50000, length $got;
                last if defined $n and $n == 0;
            }
        }
        die "wrong: connection $n\n" unless $got eq $data;
    }
    print "fine\n";
}

$what eq 'server' ? serve() : ask();
