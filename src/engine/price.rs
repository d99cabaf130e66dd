//! Prices, and the cost of units: a budget that is kept in money counts billionths of a currency unit. All of it is
//! exact, and no number is ever a float.
//!
//! A price is per million units, with up to nine digits after the point. So the cost of some units is a whole number of
//! millionths of a billionth. It is rounded up once, after the parts of a stream are added.

use std::fmt;

use crate::algorithm::MAX_HITS;

/// Number of units that a price is for.
const UNITS: u64 = 1_000_000;

/// Number of digits that a price may have after its point: billionths.
const DIGITS: usize = 9;

/// Number of billionths in a currency unit.
const BILLIONTHS: u64 = 10_u64.pow(DIGITS as u32);

/// A price of a million units.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Price {
    /// In billionths of a currency unit.
    billionths: u64,
}

/// Reasons why a text is not a price.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PriceError {
    /// No decimal number, or one with an exponent.
    #[error("is not a price: write a decimal number without quotes, such as 2.5 for a million units")]
    NotDecimal,
    /// A number below zero.
    #[error("is negative: write 0 for units that cost nothing")]
    Negative,
    /// More digits than are counted.
    #[error("has more than {DIGITS} digits after the point: budgets count billionths")]
    TooFine,
    /// More than a budget counts.
    #[error("is too high: a price is at most {} for a million units", Price::MOST)]
    TooHigh,
}

impl Price {
    /// The highest price, in whole currency units: its billionths are below 2^53, as those of a budget.
    pub const MOST: u64 = MAX_HITS / BILLIONTHS;

    /// Parses a decimal number of currency units, such as `2.5`.
    ///
    /// # Errors
    /// Fails if the text is anything else, or a number that cannot be counted exactly.
    pub fn parse(text: &str) -> Result<Price, PriceError> {
        let (sign, digits) = text.strip_prefix('-').map_or(("", text), |digits| ("-", digits));
        let (whole, fraction) = digits.split_once('.').unwrap_or((digits, "0"));
        let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // YAML 1.1 would read a number with a leading zero as an octal one.
        let is_octal = whole.len() > 1 && whole.starts_with('0');
        if !is_number(whole) || !is_number(fraction) || is_octal {
            return Err(PriceError::NotDecimal);
        }
        if !sign.is_empty() {
            return Err(PriceError::Negative);
        }
        if fraction.len() > DIGITS {
            return Err(PriceError::TooFine);
        }
        let whole = whole.parse::<u64>().ok().filter(|whole| *whole <= Price::MOST).ok_or(PriceError::TooHigh)?;
        let fraction = format!("{fraction:0<DIGITS$}").parse::<u64>().map_err(|_| PriceError::NotDecimal)?;
        let billionths = whole * BILLIONTHS + fraction;
        if billionths > Price::MOST * BILLIONTHS { Err(PriceError::TooHigh) } else { Ok(Price { billionths }) }
    }

    /// Returns what some units cost.
    pub fn of(self, units: u64) -> Cost {
        // Both are far below 2^64.
        Cost { millionths: u128::from(units) * u128::from(self.billionths) }
    }
}

/// Formats the price as in rules.
impl fmt::Display for Price {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, fraction) = (self.billionths / BILLIONTHS, self.billionths % BILLIONTHS);
        if fraction == 0 {
            return write!(f, "{whole}");
        }
        write!(f, "{whole}.{}", format!("{fraction:0DIGITS$}").trim_end_matches('0'))
    }
}

/// What units cost, exactly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cost {
    /// In millionths of a billionth of a currency unit.
    millionths: u128,
}

impl Cost {
    /// Returns the cost in billionths of a currency unit, rounded up; at most 2^53, which no budget allows anyway.
    pub fn hits(self) -> u64 {
        let hits = self.millionths.div_ceil(u128::from(UNITS));
        u64::try_from(hits).unwrap_or(MAX_HITS).min(MAX_HITS)
    }

    /// Returns the cost of both.
    #[must_use]
    pub fn and(self, other: Cost) -> Cost {
        Cost { millionths: self.millionths.saturating_add(other.millionths) }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn price(text: &str) -> Price {
        Price::parse(text).unwrap()
    }

    #[test]
    fn a_price_is_read_digit_by_digit_and_written_as_it_was_read() {
        for (text, billionths) in [
            ("0", 0),
            ("10", 10_000_000_000),
            ("2.5", 2_500_000_000),
            ("0.15", 150_000_000),
            ("0.1", 100_000_000),
            ("0.000000001", 1),
            ("9007199", 9_007_199_000_000_000),
        ] {
            assert_eq!((price(text).billionths, price(text).to_string()), (billionths, text.to_owned()));
        }
        assert_eq!(price("2.50"), price("2.5"));
    }

    #[test]
    fn what_cannot_be_counted_exactly_is_no_price() {
        for (text, error) in [
            ("", PriceError::NotDecimal),
            ("free", PriceError::NotDecimal),
            ("1e-3", PriceError::NotDecimal),
            (".5", PriceError::NotDecimal),
            ("5.", PriceError::NotDecimal),
            ("010", PriceError::NotDecimal),
            ("1_000", PriceError::NotDecimal),
            ("+1", PriceError::NotDecimal),
            ("--1", PriceError::NotDecimal),
            (".inf", PriceError::NotDecimal),
            ("-0.5", PriceError::Negative),
            ("0.1234567891", PriceError::TooFine),
            ("9007199.000000001", PriceError::TooHigh),
            ("9007200", PriceError::TooHigh),
            ("99999999999999999999", PriceError::TooHigh),
        ] {
            assert_eq!(Price::parse(text), Err(error), "{text}");
        }
    }

    #[test]
    fn a_cost_is_rounded_up_once_and_clipped() {
        // A tenth of a billionth each.
        let tenth = price("0.0001");
        assert_eq!([0, 1, 10, 11].map(|units| tenth.of(units).hits()), [0, 1, 1, 2]);
        assert_eq!(tenth.of(4).and(tenth.of(5)).and(tenth.of(1)).hits(), 1, "three parts that cost 1 together");
        assert_eq!(price("2.5").of(1_000_000).hits(), 2_500_000_000);
        assert_eq!(price("0").of(MAX_HITS).hits(), 0);
        let most = price("9007199").of(MAX_HITS);
        assert_eq!((most.hits(), most.and(most).hits()), (MAX_HITS, MAX_HITS));
    }

    fn drawn() -> impl Strategy<Value = (u64, Price)> {
        let price = prop_oneof![0..100_u64, 0..20 * BILLIONTHS, 0..=Price::MOST * BILLIONTHS];
        let units = prop_oneof![0..100_u64, 0..10_000_000_u64, 0..=MAX_HITS];
        (units, price.prop_map(|billionths| Price { billionths }))
    }

    proptest! {
        #[test]
        fn streams_pay_the_exact_price_and_less_than_a_billionth_more(parts in prop::collection::vec(drawn(), 1..6)) {
            let exact = |(units, price): &(u64, Price)| u128::from(*units) * u128::from(price.billionths);
            let exact: u128 = parts.iter().map(exact).sum();
            let costs = || parts.iter().map(|(units, price)| price.of(*units));
            let hits = u128::from(costs().reduce(Cost::and).unwrap().hits());
            if hits < u128::from(MAX_HITS) {
                prop_assert!(hits * 1_000_000 >= exact, "never less");
                prop_assert!((hits * 1_000_000).saturating_sub(exact) < 1_000_000, "rounded up once");
            } else {
                prop_assert!(exact > u128::from(MAX_HITS - 1) * 1_000_000);
            }
            let apart: u128 = costs().map(|cost| u128::from(cost.hits())).sum();
            prop_assert!(hits <= apart, "parts that are told in one call cost no more than in several");
        }

        #[test]
        fn more_units_and_higher_prices_cost_no_less((units, price) in drawn(), (more, dearer) in drawn()) {
            let (least, most) = (units.min(more), units.max(more));
            prop_assert!(price.of(least).hits() <= price.of(most).hits());
            prop_assert!(price.min(dearer).of(units).hits() <= price.max(dearer).of(units).hits());
        }

        #[test]
        fn every_price_is_read_as_it_is_written(billionths in 0..=Price::MOST * BILLIONTHS) {
            let price = Price { billionths };
            prop_assert_eq!(Price::parse(&price.to_string()), Ok(price));
        }
    }
}
