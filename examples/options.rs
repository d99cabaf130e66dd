//! Prints docs/rules.md with the table of options that do not go together as the code has it: `make pages` puts it in
//! the place of the page.

use tollgate::engine::rules::pairs;

/// The lines around the table.
const MARKS: (&str, &str) = ("<!-- made by `make pages` -->\n", "<!-- end -->\n");

fn main() -> Result<(), String> {
    let page = std::fs::read_to_string("docs/rules.md").map_err(|error| format!("docs/rules.md: {error}"))?;
    let (before, rest) = page.split_once(MARKS.0).ok_or("docs/rules.md has no place for the table")?;
    let (_, after) = rest.split_once(MARKS.1).ok_or("docs/rules.md has no end of the table")?;
    print!("{before}{}\n{}\n{}{after}", MARKS.0, pairs::page(), MARKS.1);
    Ok(())
}
