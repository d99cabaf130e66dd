//! Finds the commands needed by decisions that a user of Redis may not run. A script tries each of them, to name all
//! missing ones together, whatever Redis's own error says about the first. If that script may not run, it is unknown
//! what else is missing. In every case the message shows one line that grants everything needed
//! ([`Access::grant`](crate::store::redis::topology::Access::grant)).

use std::collections::BTreeSet;
use std::sync::LazyLock;

use deadpool_redis::redis::{Cmd, Script, cmd};

use super::cause::{Cause, Rights};

const SOURCE: &str = include_str!("../../../../lua/rights.lua");

static SHA1: LazyLock<String> = LazyLock::new(|| Script::new(SOURCE).get_hash().to_owned());

/// Returns the call that tries the commands on Tollgate's own counters.
pub(crate) fn call(prefix: &str) -> Cmd {
    let mut call = cmd("EVALSHA");
    call.arg(&*SHA1).arg(3);
    for kind in ["string", "list", "hash"] {
        call.arg(format!("{prefix}|rights:{kind}"));
    }
    call
}

/// Returns the command that loads the script.
pub(crate) fn load() -> Cmd {
    let mut load = cmd("SCRIPT");
    load.arg("LOAD").arg(SOURCE);
    load
}

/// Returns the commands that the script tries.
pub(crate) fn commands() -> BTreeSet<&'static str> {
    SOURCE.split("try('").skip(1).filter_map(|rest| rest.split('\'').next()).collect()
}

/// Returns the missing rights from the script's reply, or `None` if none is missing.
///
/// # Errors
/// A cause that makes this Redis unusable.
pub(crate) fn missing(reply: &str) -> Result<Option<Rights>, Cause> {
    let (mut commands, mut keys) = (BTreeSet::new(), false);
    for (command, failure) in reply.lines().filter_map(|line| line.split_once(' ')) {
        match Cause::known(failure) {
            Some(Cause::Lacks(rights)) if rights.keys => keys = true,
            Some(Cause::Lacks(_)) => drop(commands.insert(command.to_ascii_lowercase())),
            Some(Cause::NoCommand(_)) => return Err(Cause::NoCommand(command.to_owned())),
            _ if command == "SET" && failure.contains("syntax error") => {
                return Err(Cause::NoCommand("SET KEEPTTL".to_owned()));
            }
            // A check reports errors that affect all commands, such as a full Redis.
            _ => {}
        }
    }
    let is_missing = keys || !commands.is_empty();
    Ok(is_missing.then(|| Rights { commands: commands.into_iter().collect(), keys, grant: None }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared::{adjustment, fleet, seats};

    #[test]
    fn every_command_of_the_scripts_is_tried() {
        let decisions = crate::store::redis::script::source::all(true);
        let called =
            [decisions.as_str(), adjustment::redis::SOURCE, fleet::redis::SOURCE, seats::redis::SOURCE].concat();
        // `ask` of prelude.lua runs a command too.
        let called = called.replace(" ask('", " redis.call('").replace("(ask('", "(redis.call('");
        let called = called.split("redis.call('").skip(1);
        let called = called.filter_map(|rest| rest.split('\'').next());
        // Without INFO, instances have no shares of limits, and all else works.
        assert_eq!(commands(), called.filter(|command| *command != "INFO").collect());
    }

    #[test]
    fn versions_differ_in_how_they_deny() {
        let rights = |commands: &[&str], keys| {
            let commands = commands.iter().map(|name| (*name).to_owned()).collect();
            Some(Rights { commands, keys, grant: None })
        };
        let old = "ERR The user executing the script can't run this command or subcommand";
        let new = "NOPERM ACL failure in script: User toll has no permissions to run the 'set' command";
        let keys = "ERR The user executing the script can't access at least one of the keys mentioned in the command";
        for (reply, expected) in [
            (String::new(), Ok(None)),
            (format!("SET {old}\nRPUSH {old}\n"), Ok(rights(&["rpush", "set"], false))),
            (format!("SET {new}\n"), Ok(rights(&["set"], false))),
            (format!("SET {keys}\nGET {keys}\n"), Ok(rights(&[], true))),
            ("SET ERR syntax error\n".to_owned(), Err(Cause::NoCommand("SET KEEPTTL".into()))),
            ("RPUSH ERR Unknown Redis command called from script\n".to_owned(), Err(Cause::NoCommand("RPUSH".into()))),
            ("SET OOM command not allowed when used memory > 'maxmemory'.\n".to_owned(), Ok(None)),
        ] {
            assert_eq!(missing(&reply), expected, "{reply}");
        }
    }
}
