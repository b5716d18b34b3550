//! Whether an object of AWS is where the provider block leads now. Under another region or account it is not found, which says nothing of it.

use crate::report::{Failure, Kind};

/// Refuses a provider block of another region than that in which an object lives that names none of its own.
pub fn same_region(lives: &str, actual: &str, doing: &str) -> Result<(), Failure> {
    if lives == actual {
        return Ok(());
    }
    let what = format!("it lives in region {lives:?}, and the provider is configured for {actual:?}");
    Err(Failure::new(Kind::Elsewhere, doing, what).with_fix(format!(
        "Check `region` of the provider block: state was left as it was. To keep the object there under a provider block of another \
         region, set `region = {lives:?}` on the resource and apply that before the provider block changes. To move it, destroy it there \
         first."
    )))
}

/// Refuses credentials of another account than that of an object.
pub fn same_account(lives: &str, actual: &str, doing: &str) -> Result<(), Failure> {
    if lives == actual {
        return Ok(());
    }
    let what = format!("it lives in account {lives}, and the credentials are those of account {actual}");
    Err(Failure::new(Kind::Elsewhere, doing, what).with_fix(
        "Check `profile` of the provider block: state was left as it was. To move on purpose, destroy there first.",
    ))
}
