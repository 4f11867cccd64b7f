# Hashes of arrays and of hashes over the lines of a log. Usage: perl index.pl FILE
use strict;
use warnings;
open my $in, '<', $ARGV[0] or die;
my (%count, %pages, %near);
while (my $line = <$in>) {
    my @words = split ' ', $line;
    my $last = '';
    for my $word (@words) {
        $count{$word}++;
        push @{ $pages{$word} }, $. if @{ $pages{$word} // [] } < 50;
        $near{$last}{$word}++;
        $last = $word;
    }
    delete $near{$words[-1]} if $. % 100 == 0;
}
my @best = (sort { $count{$b} <=> $count{$a} || $a cmp $b } keys %count)[0 .. 99];
print join(' ', $_, $count{$_}, @{ $pages{$_} }, scalar keys %{ $near{$_} // {} }), "\n" for @best;
print scalar(keys %near), "\n";
