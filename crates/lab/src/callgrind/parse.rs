use std::collections::BTreeMap;

/// Executed instructions by file and address.
pub(super) type Costs = BTreeMap<(String, u64), i64>;

/// Parses callgrind's output, with addresses as positions and without compression.
pub(super) fn parse(text: &str) -> Costs {
    let mut costs = Costs::new();
    let mut object = "";
    let mut is_call = false;
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("ob=") {
            object = name;
        } else if line.starts_with("calls=") {
            // The next line has the cost of the call, which the called function's own lines
            // contain, too.
            is_call = true;
        } else if let Some((address, cost)) = cost(line) {
            if !is_call {
                *costs.entry((object.to_owned(), address)).or_default() += cost;
            }
            is_call = false;
        }
    }
    costs
}

/// An address and its cost.
fn cost(line: &str) -> Option<(u64, i64)> {
    let (address, cost) = line.strip_prefix("0x")?.split_once(' ')?;
    Some((u64::from_str_radix(address, 16).ok()?, cost.trim().parse().ok()?))
}

/// The costs by which the longer run exceeds the shorter one.
pub(super) fn difference(long: &Costs, short: &Costs) -> Costs {
    let mut costs = long.clone();
    for (place, cost) in short {
        *costs.entry(place.clone()).or_default() -= cost;
    }
    costs.retain(|_, cost| *cost != 0);
    costs
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The format of callgrind 3.19.
    const TEXT: &str = "# callgrind format\nversion: 1\npositions: instr\nevents: Ir\nsummary: 160\n\n\
        ob=/bin/x\nfl=???\nfn=main\n0x16ce90 10\ncob=/lib/libc.so.6\ncfn=malloc\ncalls=5 0x97360 \n0x16ce94 100\n\
        0x16ce98 20\n\nob=/lib/libc.so.6\nfl=???\nfn=malloc\n0x97360 90\n0x97364 10\n\ntotals: 130\n";

    #[test]
    fn every_address_has_its_own_cost() {
        let costs = parse(TEXT);
        let of = |object: &str, address| costs.get(&(object.to_owned(), address)).copied();
        assert_eq!(of("/bin/x", 0x16ce90), Some(10));
        assert_eq!(of("/bin/x", 0x16ce94), None, "what a call took is counted where it was done");
        assert_eq!(of("/bin/x", 0x16ce98), Some(20));
        assert_eq!(of("/lib/libc.so.6", 0x97360), Some(90));
        assert_eq!(costs.values().sum::<i64>(), 130);
    }

    #[test]
    fn work_of_both_runs_cancels_out() {
        let (long, short) = (parse(TEXT), parse("ob=/bin/x\n0x16ce90 4\n0x16ce98 20\n"));
        let costs = difference(&long, &short);
        assert_eq!(costs.values().sum::<i64>(), 106);
        assert_eq!(costs.len(), 3);
        assert_eq!(parse("nonsense\n0xzz 1\n0x1\n"), Costs::new());
    }
}
