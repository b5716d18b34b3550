//! Prices of the region: renewed every 12 h, kind by kind, so that a failure of one keeps its last good values and the other's new ones. What is
//! not known is estimated, and nothing waits long to know it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use karp_aws::prices::{self, Prices};
use karp_aws::{Clients, Error, Retry};
use karp_domain::catalogue::CapacityType;

use super::super::Store;
use super::fresh::Fresh;

/// How long prices are good (Karpenter: 12 h).
const LIFETIME: Duration = Duration::from_secs(12 * 3600);
/// After a renewal of which a part failed the next one waits this long.
const RETRY: Duration = Duration::from_secs(60);
/// The same where AWS refused that part again: somebody must give the right first.
const REFUSED: Duration = Duration::from_secs(15 * 60);
/// How long the first look may take where nothing was kept, since all plans wait for it: a region's some 1,400 types are 15 pages of the price
/// list and 9 of the spot history, at about a second each.
const FIRST_LOOK: Duration = Duration::from_secs(30);

/// The region's prices.
pub struct PriceList {
    fresh: Arc<Fresh<Prices>>,
    source: Arc<Source>,
}

struct Source {
    clients: Clients,
    /// The VPC has no way to the price list.
    isolated: bool,
    store: Option<Store<Prices>>,
    last: Mutex<Last>,
}

#[derive(Default)]
struct Last {
    /// The last good prices of each kind; none before the first look.
    prices: Option<Prices>,
    /// The last load was not a whole one: another is due so soon.
    again: Option<Duration>,
}

impl PriceList {
    /// Makes a list that is not looked at yet.
    pub fn new(clients: Clients, isolated: bool, store: Option<Store<Prices>>) -> Self {
        let source = Source { clients, isolated, store, last: Mutex::default() };
        Self { fresh: Fresh::new(LIFETIME), source: Arc::new(source) }
    }

    /// Returns the prices and the number of their renewal. Missing prices are not an error: they are estimated.
    pub async fn get(&self) -> Result<(Arc<Prices>, u64), Error> {
        let source = self.source.clone();
        let found = self.fresh.get(move || async move { Ok::<_, Error>(source.load().await) }).await?;
        let mut last = self.source.locked();
        if last.again.is_some_and(|wait| self.fresh.renew_after(wait)) {
            last.again = None;
        }
        Ok(found)
    }

    /// Returns when the prices of each kind were read, by this process or an earlier one; nothing of a kind that never was.
    pub fn read(&self) -> BTreeMap<CapacityType, Timestamp> {
        self.source.locked().prices.as_ref().map(|prices| prices.read.clone()).unwrap_or_default()
    }
}

impl Source {
    /// Reads the prices; the first time what a former process kept, if it kept any, so that the first plan need not wait.
    async fn load(&self) -> Prices {
        let previous = self.locked().prices.clone();
        if previous.is_none()
            && let Some(store) = &self.store
            && let Ok(Some(kept)) = store.read().await
        {
            tracing::info!(
                "on-demand-prices" = kept.on_demand.len(),
                "spot-prices" = kept.spot.len(),
                "took kept prices"
            );
            *self.locked() = Last { prices: Some(kept.clone()), again: Some(Duration::ZERO) };
            return kept;
        }
        let limit = previous.is_none().then_some(FIRST_LOOK);
        let previous = previous.unwrap_or_default();
        let on_demand = async {
            if self.isolated { Ok(previous.on_demand.clone()) } else { prices::on_demand(&self.clients).await }
        };
        let spot = prices::spot(&self.clients);
        let (on_demand, spot) = futures::join!(within(limit, on_demand), within(limit, spot));
        let refused = (is_refused(&on_demand, spot.is_ok()), is_refused(&spot, false));
        let (on_demand, good) = newer("on-demand", on_demand, &previous.on_demand);
        let (spot, also_good) = newer("spot", spot, &previous.spot);
        let mut read = previous.read;
        let answered = [(CapacityType::OnDemand, good && !self.isolated), (CapacityType::Spot, also_good)];
        read.extend(answered.into_iter().filter(|(_, new)| *new).map(|(kind, _)| (kind, Timestamp::now())));
        let found = Prices { on_demand, spot, read };
        let whole = good && also_good;
        tracing::info!(
            "on-demand-prices" = found.on_demand.len(),
            "spot-prices" = found.spot.len(),
            whole,
            "read prices"
        );
        if is_worth_keeping(&found, good, also_good)
            && let Some(store) = &self.store
        {
            store.write(&found).await;
        }
        let only_refused = (good || refused.0) && (also_good || refused.1);
        let wait = pause(only_refused, limit.is_some());
        *self.locked() = Last { prices: Some(found.clone()), again: (!whole).then_some(wait) };
        found
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Last> {
        // Nothing can panic while the lock is held, so a poisoned memory is still a sound one.
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Waits for an answer no longer than a limit, if there is one.
async fn within<T>(limit: Option<Duration>, answer: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    let Some(limit) = limit else { return answer.await };
    tokio::time::timeout(limit, answer).await.unwrap_or_else(|_| {
        let message = format!("no whole answer within {limit:?}");
        Err(Error::Unreachable { action: "reading prices", message })
    })
}

/// Returns how long the next look waits after one of which a part failed. What is refused at the first may be allowed in a moment: a fresh
/// installation's rights are not known everywhere yet, and until then all prices are estimates.
fn pause(only_refused: bool, first: bool) -> Duration {
    match (only_refused, first) {
        (false, true) => Duration::ZERO,
        (true, true) | (false, false) => RETRY,
        (true, false) => REFUSED,
    }
}

/// Says whether an answer stays as it is until somebody changes rights. Credentials that AWS does not take may be good in a moment, unless EC2
/// takes them: those of another partition (GovCloud) are unknown where the price list is.
fn is_refused<T>(answer: &Result<T, Error>, ec2_takes_them: bool) -> bool {
    match answer {
        Ok(_) => false,
        Err(Error::Credentials { .. }) => ec2_takes_them,
        Err(error) => error.retry() == Retry::OnSpecChange && !error.may_pass(),
    }
}

/// Says whether prices are kept for the next start: new ones of one kind, too, but never beside none of the other that could not be read,
/// since a former process may have kept those.
fn is_worth_keeping(found: &Prices, on_demand_is_new: bool, spot_is_new: bool) -> bool {
    let known = |new: bool, empty: bool| new || !empty;
    let all_known = known(on_demand_is_new, found.on_demand.is_empty()) && known(spot_is_new, found.spot.is_empty());
    (on_demand_is_new || spot_is_new) && all_known
}

/// Takes new prices, or keeps the last good ones when there are none; says whether the new ones were good.
fn newer<T: Clone>(
    kind: &str,
    answer: Result<BTreeMap<String, T>, Error>,
    last: &BTreeMap<String, T>,
) -> (BTreeMap<String, T>, bool) {
    match answer {
        Ok(found) if found.is_empty() && !last.is_empty() => {
            tracing::warn!("{kind} prices came back empty: the last good ones stand");
            (last.clone(), false)
        }
        Ok(found) => (found, true),
        Err(error) => {
            let then = if last.is_empty() { "they are estimated" } else { "the last good ones stand" };
            tracing::warn!(%error, kept = last.len(), "{kind} prices could not be read: {then}");
            (last.clone(), false)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_prices_of_one_kind_are_kept_beside_the_last_good_ones_of_the_other() {
        let price = karp_domain::catalogue::Price::from_micro_dollars(1);
        let spot = || BTreeMap::from([("m5.large".to_owned(), BTreeMap::from([("a".to_owned(), price)]))]);
        let one = Prices { spot: spot(), ..Prices::default() };
        let both = Prices { on_demand: BTreeMap::from([("m5.large".to_owned(), price)]), ..one.clone() };
        assert!(is_worth_keeping(&both, true, true) && is_worth_keeping(&both, false, true));
        assert!(!is_worth_keeping(&both, false, false), "nothing is new");
        assert!(!is_worth_keeping(&one, false, true), "what a former process kept may be better than nothing");
        assert!(is_worth_keeping(&one, true, true), "the price list has none, or there is no way to it");
    }

    #[test]
    fn a_refusal_is_no_reason_to_ask_every_minute() {
        let refused = |code: &str, ec2_takes_them| {
            is_refused::<u8>(&Err(Error::from_code("pricing:GetProducts", code, String::new())), ec2_takes_them)
        };
        assert!(refused("AccessDeniedException", false), "no right to it");
        assert!(
            refused("UnrecognizedClientException", true),
            "EC2 takes the credentials: they are of another partition"
        );
        assert!(!refused("ExpiredTokenException", false), "nobody takes them now");
        assert!(!refused("ThrottlingException", true) && !refused("InternalServiceError", true));
        let cut = |status| Err(Error::NotImplemented { action: "pricing:GetProducts", status });
        assert!(!is_refused::<u8>(&cut(500), true) && is_refused::<u8>(&cut(403), true));
        assert!(!is_refused(&Ok(1), true), "nothing is refused");
    }

    #[test]
    fn rights_that_were_given_a_moment_ago_are_tried_soon() {
        assert_eq!((pause(true, true), pause(true, false)), (RETRY, REFUSED));
        assert_eq!((pause(false, true), pause(false, false)), (Duration::ZERO, RETRY));
    }

    #[tokio::test]
    async fn a_limit_ends_the_wait_for_an_answer() {
        let never = futures::future::pending::<Result<u8, Error>>();
        let told = within(Some(Duration::from_millis(10)), never).await.expect_err("it never comes").to_string();
        assert!(told.contains("no whole answer within 10ms"), "{told}");
        assert_eq!(within(None, async { Ok(2) }).await.ok(), Some(2));
    }

    #[test]
    fn a_failed_or_empty_answer_keeps_the_last_good_prices() {
        let table = |kinds: &[&str]| kinds.iter().map(|kind| ((*kind).to_owned(), 1)).collect::<BTreeMap<_, u8>>();
        let failed = || Err(Error::Unreachable { action: "pricing:GetProducts", message: "down".into() });
        let last = table(&["a"]);
        assert_eq!(newer("spot", Ok(table(&["b"])), &last), (table(&["b"]), true));
        assert_eq!(newer("spot", Ok(table(&[])), &last), (last.clone(), false));
        assert_eq!(newer("spot", failed(), &last), (last.clone(), false));
        assert_eq!(newer("spot", Ok(table(&[])), &table(&[])), (table(&[]), true), "nothing to be had, nothing lost");
    }
}
