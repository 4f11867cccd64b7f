# Data frames, strings, models. Usage: Rscript tables.R FILE SIZE
given <- commandArgs(trailingOnly = TRUE)
sales <- read.csv(given[1], stringsAsFactors = FALSE)
for (turn in seq_len(as.integer(given[2]))) {
  sales$words <- sapply(strsplit(sales$note, " "), length)
  by <- aggregate(price ~ shop + count, sales, mean)
  parts <- lapply(split(sales, sales$shop), function(p) p[order(p$price), ])
  fit <- lm(price ~ count + words, sales)
  text <- paste0(toupper(sales$article), "-", sales$count)
}
print(head(by[order(by$shop, by$count), ], 40))
print(round(coef(fit), 4))
cat(length(parts), length(unique(text)), "\n")
