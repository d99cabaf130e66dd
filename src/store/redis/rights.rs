//! Which commands that decisions need a user of Redis may not run: a script tries each, so that all that are missing
//! are named together, whatever version of Redis says of the first.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use deadpool_redis::redis::{Cmd, Script, cmd};

use super::cause::{Cause, Rights};

const SOURCE: &str = include_str!("../../../lua/rights.lua");

static SHA1: LazyLock<String> = LazyLock::new(|| Script::new(SOURCE).get_hash().to_owned());

/// The call that tries them on counters with this prefix. Their names have no hash tag: in a Redis Cluster they are
/// kept apart, which an error then says.
pub(super) fn call(prefix: &str) -> Cmd {
    let mut call = cmd("EVALSHA");
    call.arg(&*SHA1).arg(2);
    for kind in ["string", "list"] {
        call.arg(format!("{prefix}{{}}|rights:{kind}"));
    }
    call
}

/// The command that lets Redis know the script.
pub(super) fn load() -> Cmd {
    let mut load = cmd("SCRIPT");
    load.arg("LOAD").arg(SOURCE);
    load
}

/// What is missing, in what the script says; `None` where nothing is.
///
/// # Errors
/// What makes this Redis unfit.
pub(super) fn missing(reply: &str) -> Result<Option<Rights>, Cause> {
    let (mut commands, mut keys) = (BTreeSet::new(), None);
    for (command, failure) in reply.lines().filter_map(|line| line.split_once(' ')) {
        match Cause::known(failure) {
            Some(Cause::Lacks(rights)) if rights.keys.is_some() => keys = rights.keys,
            Some(Cause::Lacks(_)) => drop(commands.insert(command.to_ascii_lowercase())),
            Some(Cause::NoCommand(_)) => return Err(Cause::NoCommand(command.to_owned())),
            _ if command == "SET" && failure.contains("syntax error") => {
                return Err(Cause::NoCommand("SET KEEPTTL".to_owned()));
            }
            // What is in the way of all commands, such as a full Redis, a check sees.
            _ => {}
        }
    }
    let is_missing = keys.is_some() || !commands.is_empty();
    Ok(is_missing.then(|| Rights { user: None, commands: commands.into_iter().collect(), keys }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_of_the_scripts_is_tried() {
        let commands = |source: &'static str, before: &'static str| -> BTreeSet<&str> {
            source.split(before).skip(1).filter_map(|rest| rest.split('\'').next()).collect()
        };
        assert_eq!(commands(SOURCE, "try('"), commands(&super::super::script::SOURCE, "redis.call('"));
    }

    #[test]
    fn versions_differ_in_how_they_deny() {
        let rights = |commands: &[&str], keys: Option<&str>| {
            let commands = commands.iter().map(|name| (*name).to_owned()).collect();
            Some(Rights { user: None, commands, keys: keys.map(str::to_owned) })
        };
        let old = "ERR The user executing the script can't run this command or subcommand";
        let new = "NOPERM ACL failure in script: User toll has no permissions to run the 'set' command";
        let keys = "ERR The user executing the script can't access at least one of the keys mentioned in the command";
        for (reply, expected) in [
            (String::new(), Ok(None)),
            (format!("SET {old}\nRPUSH {old}\n"), Ok(rights(&["rpush", "set"], None))),
            (format!("SET {new}\n"), Ok(rights(&["set"], None))),
            (format!("SET {keys}\nGET {keys}\n"), Ok(rights(&[], Some("*")))),
            ("SET ERR syntax error\n".to_owned(), Err(Cause::NoCommand("SET KEEPTTL".into()))),
            ("RPUSH ERR Unknown Redis command called from script\n".to_owned(), Err(Cause::NoCommand("RPUSH".into()))),
            ("SET OOM command not allowed when used memory > 'maxmemory'.\n".to_owned(), Ok(None)),
        ] {
            assert_eq!(missing(&reply), expected, "{reply}");
        }
    }
}
