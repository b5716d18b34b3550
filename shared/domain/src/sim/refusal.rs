//! What EC2 refuses until somebody puts it right: a role may not be passed, a parameter of the class is wrong, a quota is met.

use std::collections::BTreeMap;
use std::time::Duration;

use super::World;
use crate::api::labels;

/// Codes of such refusals.
const CODES: [&str; 3] = ["UnauthorizedOperation", "InvalidParameterValue", "InstanceLimitExceeded"];
/// A refusal that heals does so after so many seconds at most: before the first claim is given up for it.
const HEALS: usize = 240;

/// What EC2 refuses, and has refused.
#[derive(Clone, Debug, Default)]
pub(super) struct Refused {
    /// The code for each pool, until it heals.
    pools: BTreeMap<String, (&'static str, Duration)>,
    /// EC2 keeps its answer under the client token.
    pub(super) tokens: BTreeMap<String, &'static str>,
    /// When each process was last refused the instance of a claim.
    pub(super) told: BTreeMap<(String, String), Duration>,
    pub(super) count: u32,
}

impl World {
    /// Lets a second pass for those who take rights away and give them back.
    pub(super) fn change_rights(&mut self) {
        let now = self.uptime();
        self.refused.pools.retain(|_, (_, until)| now < *until);
        if self.random.happens(self.faults.refuses_permille) {
            let pool = self.pools[self.random.below(self.pools.len())].name.to_string();
            let code = CODES[self.random.below(CODES.len())];
            let until = now + Duration::from_secs(1 + self.random.below(HEALS) as u64);
            self.refused.pools.entry(pool).or_insert((code, until));
        }
    }

    /// Answers the code by which EC2 refuses the instance of a claim, if it does.
    pub(super) fn refusal(&mut self, claim: &str, uid: &str, token: &str) -> Option<&'static str> {
        let kept = self.refused.tokens.get(token).copied();
        let pool = self.claims.get(claim).and_then(|claim| claim.metadata.labels.as_ref()?.get(labels::NODE_POOL));
        let for_good = pool.filter(|pool| Some(pool.as_str()) == self.faults.refused_pool).map(|_| CODES[0]);
        let for_now = pool.and_then(|pool| self.refused.pools.get(pool)).map(|(code, _)| *code);
        let code = kept.or(for_good).or(for_now)?;
        self.refused.count += 1;
        self.refused.tokens.insert(token.to_owned(), code);
        self.refused.told.insert((self.process.clone(), uid.to_owned()), self.uptime());
        Some(code)
    }
}
