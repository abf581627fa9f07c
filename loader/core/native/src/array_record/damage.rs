//! Why a chunk cannot be read.

use std::fmt;

/// The reason, as a clause that follows the name of the chunk.
#[derive(Debug, PartialEq, Eq)]
pub struct Damage(pub String);

impl fmt::Display for Damage {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(&self.0)
    }
}

/// A result that is damage if the bytes are not what was written.
pub type Found<T> = Result<T, Damage>;

/// Damage for this reason.
pub fn damaged<T>(why: impl Into<String>) -> Found<T> {
    Err(Damage(why.into()))
}

/// A number with commas between thousands, as Python's `{:,}`.
pub fn commas(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_commas() {
        assert_eq!(
            [0, 999, 1000, 65536, 1 << 31].map(commas),
            ["0", "999", "1,000", "65,536", "2,147,483,648"]
        );
    }
}
