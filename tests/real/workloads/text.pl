# Hashes, arrays, regular expressions and sorting over generated log lines.
# Prints one checksum that depends on the size only. Usage: perl text.pl [SIZE]
use strict;
use warnings;
use Digest::SHA;

my $size = $ARGV[0] // 10;
if ($size !~ /^[1-9][0-9]*$/) {
    print STDERR "text.pl: '$size' is not a size\n";
    exit 2;
}

my $state = 12345;

sub below {
    my ($bound) = @_;
    $state = ($state * 1103515245 + 12345) % 2147483648;
    return ($state >> 8) % $bound;
}

sub make_line {
    my $path = join '/', map { 'part' . below(40) } 1 .. 2 + below(5);
    return sprintf '10.%d.%d.%d "GET /%s?id=%d" %d %s', below(4), below(250), below(250), $path,
        below(100000), (200, 200, 304, 404, 500)[below(5)], 'z' x below(120);
}

sub summarise {
    my ($lines) = @_;
    my (%by_status, %by_path);
    for my $line (@$lines) {
        my ($path, $id, $status, $rest) = $line =~ m{"GET /(\S+)\?id=(\d+)" (\d+) (z*)} or next;
        push @{ $by_status{$status} }, $id;
        $by_path{$_}{$status} += length $rest for split m{/}, $path;
    }
    my @rows = map { join ':', $_, scalar @{ $by_status{$_} }, sort { $a <=> $b } @{ $by_status{$_} } } sort keys %by_status;
    for my $path (sort keys %by_path) {
        push @rows, join ' ', $path, map { "$_=$by_path{$path}{$_}" } sort keys %{ $by_path{$path} };
    }
    return join "\n", @rows;
}

my $digest = Digest::SHA->new(256);
for (1 .. $size) {
    my @lines = map { make_line() } 1 .. 6000;
    $digest->add(summarise(\@lines));
    my $text = join "\n", @lines;
    $text =~ s/(\d+)\.(\d+)/$2-$1/g;
    $digest->add(substr $text, 0, 200000);
}
print "text size=$size checksum=", $digest->hexdigest, "\n";
