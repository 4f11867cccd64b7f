# Hashes, arrays, strings, regular expressions, sorting, fork and ithreads.
use strict;
use warnings;
use threads;
use threads::shared;
use Digest::SHA qw(sha256_hex);
use Storable qw(freeze thaw);
use IO::Handle;

STDOUT->autoflush(1);

sub table {
    my ($seed, $count) = @_;
    my $state = $seed;
    my %table;
    for my $i (1 .. $count) {
        $state = ($state * 1103515245 + 12345) % 2147483648;
        my $key = "key" . ($state % 3000);
        if ($i % 5 == 0) {
            delete $table{$key};
        } else {
            push @{ $table{$key}{list} }, "v" x ($state % 200);
            $table{$key}{text} .= $state;
        }
    }
    return \%table;
}

sub digest {
    my ($table) = @_;
    my $text = '';
    for my $key (sort keys %$table) {
        $text .= "$key=$table->{$key}{text}:" . join(',', sort map { length } @{ $table->{$key}{list} }) . ";";
    }
    my $matches = () = $text =~ /(\d{3})7\1?/g;
    (my $short = $text) =~ s/(\d+)/length($1)/ge;
    return sha256_hex($text) . " $matches " . length($short);
}

print "main ", digest(table(1, 60000)), "\n";
print "copy ", digest(thaw(freeze(table(2, 20000)))), "\n";

my @lines = map { sprintf "%s %07d", scalar reverse($_ * 31), ($_ * 7919) % 100003 } 1 .. 40000;
print "sort ", sha256_hex(join "\n", sort { (split / /, $a)[1] <=> (split / /, $b)[1] or $a cmp $b } @lines), "\n";

# Threads clone the interpreter: many small blocks at once, freed when joined.
my %shared : shared;
my @threads = map {
    my $seed = $_;
    threads->create(sub { $shared{$seed} = digest(table($seed, 8000)); return $seed; });
} 1 .. 4;
$_->join for @threads;
print "thread $_ $shared{$_}\n" for sort keys %shared;

for my $seed (1 .. 3) {
    pipe(my $reader, my $writer) or die "pipe: $!";
    defined(my $pid = fork) or die "fork: $!";
    if ($pid == 0) {
        close $reader;
        print $writer digest(table($seed, 8000));
        close $writer;
        exit 0;
    }
    close $writer;
    print "child $seed ", scalar(<$reader>), "\n";
    waitpid $pid, 0;
    die "child ended with $?" if $?;
}
print "shell ", scalar(`printf '%s' "from a shell" | tr a-z A-Z`), "\n";
