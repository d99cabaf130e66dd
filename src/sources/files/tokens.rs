//! The file of administrators' tokens: who holds each, and what its holder may do.
//!
//! The file holds hashes, so whoever reads it learns no token. It is read whole: with one mistake, none of its tokens
//! counts.

use std::path::Path;

use super::{load, yaml};
use crate::engine::rules::report::{Bytes, Problem, Report, RulesError, Severity};
use crate::files::refuse_pipe;

pub use super::token::{MOST, NamedToken, Role, Sha256, TokenOptions};

/// Largest file.
const MOST_BYTES: u64 = 1024 * 1024;

/// Reads a file of tokens.
///
/// # Errors
/// Lists all mistakes. A warning of rules files, such as a key given twice, is an error here.
pub fn load(path: &Path, options: &TokenOptions<'_>) -> Result<Vec<NamedToken>, RulesError> {
    let mut report = Report::default();
    let tokens = read(path, options, &mut report).unwrap_or_default();
    let strict = |problem: Problem| Problem { severity: Severity::Error, ..problem };
    match report.finish() {
        Ok(warnings) if warnings.is_empty() => Ok(tokens),
        Ok(warnings) => Err(RulesError { problems: warnings.into_iter().map(strict).collect(), more: 0 }),
        Err(RulesError { problems, more }) => {
            Err(RulesError { problems: problems.into_iter().map(strict).collect(), more })
        }
    }
}

/// Returns `None` if the file cannot be read, which is reported.
fn read(path: &Path, options: &TokenOptions<'_>, report: &mut Report) -> Option<Vec<NamedToken>> {
    if let Err(error) = refuse_pipe(path) {
        report.refuse(path, format!("cannot be read: {error}"));
        return None;
    }
    let bytes = load::read(path, MOST_BYTES, report)?;
    if bytes.len() as u64 > MOST_BYTES {
        report.refuse(path, format!("is longer than {}, so it is no file of tokens", Bytes(MOST_BYTES)));
        return None;
    }
    let text = load::decode(path, bytes, MOST_BYTES, report)?;
    Some(yaml::tokens(path, &text, options, report))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use super::*;

    const HASH: &str = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"; // of "test"

    fn said(text: &str) -> Result<Vec<NamedToken>, Vec<String>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("tokens.yaml");
        fs::write(&path, text).unwrap();
        let others = [("ADMIN_TOKEN", Sha256::of(b"the token of the setting"))];
        load(&path, &TokenOptions { least_characters: 16, others: &others }).map_err(|error| {
            let prefix = format!("{}:", path.display());
            error.to_string().lines().map(|line| line.replace(&prefix, "")).collect()
        })
    }

    #[test]
    fn a_token_has_a_name_a_hash_roles_and_domains() {
        let tokens = said(&format!(
            "tokens:\n- {{name: ops, sha256: {HASH}, roles: [read, adjust], domains: [shop, api]}}\n\
             - name: ci\n  token: 1234567890123456\n  roles: [reset]\n"
        ))
        .unwrap();
        let [ops, ci] = &*tokens else { panic!("{tokens:?}") };
        assert_eq!((&*ops.name, ops.sha256), ("ops", Sha256::of(b"test")));
        assert_eq!(ops.roles, BTreeSet::from([Role::Read, Role::Adjust]));
        assert_eq!(ops.domains, Some(BTreeSet::from(["api".to_owned(), "shop".to_owned()])));
        assert_eq!((ci.sha256, &ci.domains), (Sha256::of(b"1234567890123456"), &None));
        assert_eq!(said("tokens: []"), Ok(Vec::new()));
        assert!(!format!("{tokens:?}").contains("9f86"), "no log shows a hash");
    }

    #[test]
    fn a_name_says_who_holds_the_token() {
        for name in ["\"\"", "\" \"", "ADMIN_TOKEN", "ADMIN_READ_TOKEN"] {
            let mistakes = said(&format!("tokens:\n- {{name: {name}, sha256: {HASH}, roles: [reset]}}\n")).unwrap_err();
            assert_eq!(mistakes.len(), 1, "{mistakes:?}");
            assert!(mistakes[0].contains("tokens[0].name: "), "{mistakes:?}");
        }
    }

    #[test]
    fn all_mistakes_are_told_with_their_lines_and_what_would_be_right() {
        let all = said(&format!(
            "tokens:
- {{name: ops, sha256: {HASH}, roles: [raed]}}
- {{name: ops, sha256: {HASH}, roles: []}}
- {{name: a b, token: short, role: [read]}}
- {{token: a token of some length, sha256: {HASH}, roles: [read]}}
- {{name: c, roles: [admin], sha256: 12, domains: [shop]}}
- {{name: d, token: the token of the setting, roles: [read], domains: [shop]}}
- {{name: e, token: \"a token that has an end\\n\", roles: [reset], domains: []}}
- {{name: f, roles: [reset]}}
- {{name: g, roles: [read], roles: [admin], token: a token of some length}}
- {{name: h, sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855, roles: [read]}}
- 7
- {{name: i, token: another token of a length, roles: [promote, adjust], domains: [shop]}}
"
        ))
        .unwrap_err();
        let wanted = [
            "2: tokens[0].roles[0]: unknown role \"raed\", did you mean \"read\"?",
            "3: tokens[1].name: the token of line 2 has this name, too: give each its own",
            "3: tokens[1].sha256: is the token of line 2, too: give each name its own",
            "3: tokens[1].roles: an empty list permits nothing: name some of read, adjust",
            "4: tokens[2].name: use up to 64 letters",
            "4: tokens[2].token: has 5 characters, which is too easy to guess: it needs at least 16",
            "4: tokens[2].role: unknown key \"role\", did you mean \"roles\"?",
            "5: tokens[3]: name is missing: the name of who holds the token",
            "5: tokens[3].token: the token has a sha256 as well",
            "6: tokens[4].sha256: must be 64 hexadecimal digits",
            "6: tokens[4].domains: the role admin is for everything",
            "7: tokens[5].token: is the ADMIN_TOKEN, too",
            "7: tokens[5].domains: limits what the roles adjust, credit and reset may change",
            "8: tokens[6].token: no HTTP header can carry it",
            "8: tokens[6].domains: an empty list permits no domain",
            "9: tokens[7]: sha256 is missing: the hash of the token, from printf %s TOKEN | sha256sum",
            "10: tokens[8].roles: the key occurs above as well",
            "11: tokens[9].sha256: is the hash of an empty text",
            "12: tokens[10]: must be a mapping, not 7",
            "13: tokens[11].domains: the role promote replaces the rules of all domains: leave domains out",
        ];
        for (found, wanted) in all.iter().zip(wanted) {
            let (line, rest) = found.split_once(':').unwrap();
            let found = format!("{line}:{}", rest.split_once(':').unwrap().1);
            assert!(found.starts_with(wanted), "{found}\n{wanted}");
        }
        assert_eq!(all.len(), wanted.len(), "{all:#?}");
    }

    #[test]
    fn a_file_that_is_empty_half_written_or_another_is_no_list_of_tokens() {
        for (text, wrong) in [
            ("", "the file is empty; write tokens: []"),
            ("# nothing", "the file is empty"),
            ("tokens:", "tokens is missing"),
            ("tokens:\n- {name: ops, sha", "not YAML"),
            ("domain: shop\n", "unknown key \"domain\"; there are tokens"),
            ("apiVersion: v1\nkind: Secret\n", "this is a Kubernetes \"Secret\""),
            ("- tokens", "must be a mapping"),
            ("tokens: []\n---\ntokens: []\n", "a second YAML document"),
            ("tokens: [*a]", ""),
        ] {
            let all = said(text).unwrap_err();
            assert!(all[0].contains(wrong), "{text}: {all:?}");
        }
        let many: String = (0..=MOST).map(|i| format!("- {{name: n{i}, token: token-of-some-length-{i}}}\n")).collect();
        assert!(said(&format!("tokens:\n{many}")).unwrap_err()[0].contains("has 1001 tokens, and may have 1000"));
        let long = "#".repeat(MOST_BYTES as usize + 1);
        assert!(said(&long).unwrap_err()[0].contains("is longer than 1 MiB"));
        let folder = tempfile::tempdir().unwrap();
        let options = TokenOptions { least_characters: 16, others: &[] };
        assert!(load(folder.path(), &options).unwrap_err().to_string().contains("cannot be read"));
        assert!(load(&folder.path().join("none"), &options).unwrap_err().to_string().contains("cannot be read"));
    }
}
