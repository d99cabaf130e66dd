//! The parameters of a query. All paths read them in the same way, and refuse what they do not know.

use std::borrow::Cow;
use std::fmt::Display;
use std::ops::RangeInclusive;
use std::str::FromStr;

use axum::http::StatusCode;

use super::admin::{Refusal, refuse};
use crate::survey::Scope;

/// The parameters of a query, each of which has one of the names of its path.
pub(super) struct Query<'q>(Vec<(Cow<'q, str>, Cow<'q, str>)>);

impl<'q> Query<'q> {
    /// Parses a query of a path that has parameters of these names.
    pub(super) fn read(query: Option<&'q str>, names: &[&str]) -> Result<Query<'q>, Refusal> {
        let pairs: Vec<_> = form_urlencoded::parse(query.unwrap_or_default().as_bytes()).collect();
        let Some((other, _)) = pairs.iter().find(|(name, _)| !names.contains(&&**name)) else {
            return Ok(Query(pairs));
        };
        let known = match names {
            [only] => format!("the only parameter is {only}"),
            [rest @ .., last] => format!("the parameters are {} and {last}", rest.join(", ")),
            [] => "there are no parameters here".to_owned(),
        };
        Err(bad(format!("the query has {other}: {known}")))
    }

    /// Returns all values of a parameter that may be repeated.
    pub(super) fn all<'s>(&'s self, name: &'s str) -> impl Iterator<Item = &'s str> {
        self.0.iter().filter(move |(key, _)| key == name).map(|(_, value)| &**value)
    }

    /// Returns the value of a parameter, the last one if it is repeated.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(key, _)| key == name).map(|(_, value)| &**value)
    }

    /// Returns the same as an own text; empty without the parameter.
    pub(super) fn owned(&self, name: &str) -> String {
        self.text(name).unwrap_or_default().to_owned()
    }

    /// Returns the value of a parameter, parsed.
    pub(super) fn parsed<T: FromStr<Err: Display>>(&self, name: &str) -> Result<Option<T>, Refusal> {
        let Some(value) = self.text(name) else { return Ok(None) };
        value.parse().map(Some).map_err(|error| bad(format!("{name}={value}: {error}")))
    }

    /// Returns the value of a parameter that is a whole number in a range.
    pub(super) fn number<T: FromStr + PartialOrd + Display>(
        &self,
        name: &str,
        range: RangeInclusive<T>,
    ) -> Result<Option<T>, Refusal> {
        let Some(value) = self.text(name) else { return Ok(None) };
        let number = value.parse().ok().filter(|number| range.contains(number));
        let wrong = || bad(format!("{name}={value}: write a whole number from {} to {}", range.start(), range.end()));
        number.map(Some).ok_or_else(wrong)
    }

    /// Returns the value of a parameter that is the name of one of these.
    pub(super) fn one_of<T: Copy>(
        &self,
        name: &str,
        all: &[T],
        name_of: impl Fn(T) -> &'static str,
    ) -> Result<Option<T>, Refusal> {
        let Some(value) = self.text(name) else { return Ok(None) };
        let found = all.iter().copied().find(|one| name_of(*one) == value);
        let names = || all.iter().map(|one| name_of(*one)).collect::<Vec<_>>().join(", ");
        found.map(Some).ok_or_else(|| bad(format!("{name}={value}: write one of {}", names())))
    }

    /// Returns whether a parameter is `true`; false without it.
    pub(super) fn flag(&self, name: &str) -> Result<bool, Refusal> {
        let words = |flag| if flag { "true" } else { "false" };
        Ok(self.one_of(name, &[true, false], words)?.unwrap_or(false))
    }

    /// Returns which instances the parameter `instance` asks: all of them without it.
    pub(super) fn scope(&self) -> Result<Scope, Refusal> {
        match self.text("instance") {
            None | Some("all") => Ok(Scope::Fleet),
            Some("self") => Ok(Scope::Own),
            Some(_) => Err(bad("instance must be all, or self for the asked instance alone")),
        }
    }
}

fn bad(reason: impl ToString) -> Refusal {
    refuse(StatusCode::BAD_REQUEST, reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_path_does_not_know_is_refused_with_what_it_knows() {
        let read = |query: &'static str, names: &[&str]| {
            Query::read(Some(query), names).err().map(|why| why.reason().to_owned())
        };
        assert_eq!(read("b=1&a=2", &["a", "b"]), None);
        assert_eq!(read("a=1&z=2", &["a", "b", "c"]).unwrap(), "the query has z: the parameters are a, b and c");
        assert_eq!(read("z", &["a"]).unwrap(), "the query has z: the only parameter is a");
        assert!(Query::read(None, &[]).is_ok());
    }

    #[test]
    fn values_are_read_or_the_right_ones_named() {
        let query =
            Query::read(Some("n=7&n=9&by=up&on=true&instance=self&text=a%20b"), &["n", "by", "on", "instance", "text"]);
        let query = query.unwrap();
        assert_eq!(query.all("n").collect::<Vec<_>>(), ["7", "9"]);
        assert_eq!((query.number("n", 1..=9).unwrap(), query.text("text")), (Some(9), Some("a b")));
        assert!(query.flag("on").unwrap() && !query.flag("off").unwrap());
        assert_eq!(query.scope().unwrap(), Scope::Own);
        let reason = |error: Refusal| error.reason().to_owned();
        assert_eq!(query.number("n", 1..=8).map_err(reason), Err("n=9: write a whole number from 1 to 8".into()));
        let words = |down: bool| if down { "down" } else { "left" };
        assert_eq!(
            query.one_of("by", &[true, false], words).map_err(reason),
            Err("by=up: write one of down, left".into())
        );
        assert_eq!(query.number("none", 1..=8).map_err(reason), Ok(None));
    }
}
