# Regular expressions, substitution, join and sort on a log as one text. Usage: perl rewrite.pl FILE
use strict;
use warnings;
local $/;
open my $in, '<', $ARGV[0] or die;
my $text = <$in>;
$text =~ s/(\d+)\.(\d+)\.(\d+)\.(\d+)/$4.$3.$2.$1/g;
my @lines = map { my @w = reverse split / /; join ' ', @w } split /\n/, $text;
my %by = map { /id=(\d+)/ ? ($1 => uc $_) : () } @lines;
$text = join "\n", map { $by{$_} } sort { $a <=> $b } keys %by;
$text =~ s/([AEIOU]+)/<$1>/g;
my $sum = 0;
$sum = ($sum * 31 + length $_) % 1000003 for split /\n/, $text;
print length($text), " $sum\n", substr($text, 0, 2000), "\n";
