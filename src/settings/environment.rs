//! The environment as a value, which tests can choose.

use std::collections::BTreeMap;

/// The variables of an environment by name. An empty variable counts as unset: Helm and compose leave such variables.
#[derive(Clone, Debug, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// Returns the environment of this process.
    pub fn of_process() -> Environment {
        let text = |text: std::ffi::OsString| text.to_string_lossy().into_owned();
        std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect()
    }

    /// Returns the value of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns whether a variable is set and empty.
    pub fn has_empty(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(String::is_empty)
    }

    /// Returns all names and values, in the order of the names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        let variables = self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        variables.filter(|(_, value)| !value.is_empty())
    }
}

impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (N, V)>>(variables: I) -> Self {
        Environment(variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}
