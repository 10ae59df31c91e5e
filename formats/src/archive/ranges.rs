//! Sets of places, as ranges: erased events are most often either few or in long runs.

use serde::{Deserialize, Deserializer, Serialize};

/// A set of numbers: ranges with both ends included, ascending, with gaps between them.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Ranges(Vec<(u64, u64)>);

impl Ranges {
    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Number of elements.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|(low, high)| high - low + 1).sum()
    }

    /// Elements, ascending.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().flat_map(|(low, high)| *low..=*high)
    }

    /// Whether the number is in the set.
    pub fn contains(&self, number: u64) -> bool {
        let next = self.0.partition_point(|(low, _)| *low <= number);
        next > 0 && self.0[next - 1].1 >= number
    }

    /// Adds a number.
    pub fn insert(&mut self, number: u64) {
        let next = self.0.partition_point(|(low, _)| *low <= number);
        let touches_before = next > 0 && self.0[next - 1].1.saturating_add(1) >= number;
        let touches_after = self.0.get(next).is_some_and(|(low, _)| *low == number.saturating_add(1));
        match (touches_before, touches_after) {
            (true, true) => {
                self.0[next - 1].1 = self.0[next].1;
                self.0.remove(next);
            }
            (true, false) => self.0[next - 1].1 = self.0[next - 1].1.max(number),
            (false, true) => self.0[next].0 = number,
            (false, false) => self.0.insert(next, (number, number)),
        }
    }

    /// Adds all numbers from one to another, both included.
    pub fn insert_range(&mut self, low: u64, high: u64) {
        if low <= high {
            self.extend(&Ranges(vec![(low, high)]));
        }
    }

    /// Adds everything of another set.
    pub fn extend(&mut self, other: &Ranges) {
        if other.is_empty() {
            return;
        }
        let mut all = std::mem::take(&mut self.0);
        all.extend(&other.0);
        all.sort_unstable();
        for (low, high) in all {
            match self.0.last_mut() {
                Some(last) if last.1.saturating_add(1) >= low => last.1 = last.1.max(high),
                _ => self.0.push((low, high)),
            }
        }
    }
}

/// For people: `3, 7–9`.
impl std::fmt::Display for Ranges {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let range = |(low, high): &(u64, u64)| match low == high {
            true => low.to_string(),
            false => format!("{low}–{high}"),
        };
        f.write_str(&self.0.iter().map(range).collect::<Vec<_>>().join(", "))
    }
}

impl<'de> Deserialize<'de> for Ranges {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Ranges, D::Error> {
        let ranges = Vec::<(u64, u64)>::deserialize(deserializer)?;
        let backwards = ranges.iter().any(|(low, high)| low > high);
        let touching = ranges.windows(2).any(|pair| pair[0].1 >= pair[1].0.saturating_sub(1));
        if backwards || touching {
            return Err(serde::de::Error::custom("ranges must ascend, with gaps between them"));
        }
        Ok(Ranges(ranges))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #[test]
        fn ranges_are_a_set_of_numbers(numbers in prop::collection::vec(0u64..60, 0..80), more in prop::collection::vec(0u64..60, 0..40)) {
            let set: BTreeSet<u64> = numbers.iter().chain(&more).copied().collect();
            let mut ranges = Ranges::default();
            numbers.iter().for_each(|number| ranges.insert(*number));
            let mut other = Ranges::default();
            more.iter().for_each(|number| other.insert(*number));
            ranges.extend(&other);
            prop_assert_eq!(ranges.len(), set.len() as u64);
            (0..62).for_each(|number| assert_eq!(ranges.contains(number), set.contains(&number), "{number}"));
            let text = serde_json::to_string(&ranges).expect("it can be written");
            prop_assert_eq!(serde_json::from_str::<Ranges>(&text).expect("it can be read"), ranges);
        }
    }
}
