"""pandas: a CSV read, grouped, joined, its text changed. Usage: frames.py FILE"""

import sys

import pandas

sales = pandas.read_csv(sys.argv[1], parse_dates=["day"])
sales["words"] = sales["note"].str.upper().str.split()
sales["sum"] = sales["count"] * sales["price"]
by = sales.groupby(["shop", "article"])["sum"].agg(["sum", "mean", "count"]).reset_index()
joined = sales.merge(by, on=["shop", "article"]).sort_values(["day", "sum_y", "sum_x"])
wide = joined.pivot_table(index="shop", columns=joined["day"].dt.month, values="sum_x").fillna(0)
print(wide.round(2).to_csv()[:3000], joined["words"].str.len().sum())
