//! When a call that the API server refuses for now is tried again.

use std::time::Duration;

use http::{Request, Response};
use kube::client::Body;
use kube::client::retry::RetryPolicy;
use tokio::time::{Instant, Sleep, sleep};
use tower::BoxError;
use tower::retry::{Policy, RetryLayer};

/// The first pause; each is about twice the last one.
const FIRST: Duration = Duration::from_millis(5);
/// No pause is longer, unless the API server asks for one. kube's own grow to minutes: who sleeps so long outlasts the outage.
const LONGEST: Duration = Duration::from_secs(5);
/// So many tries after the first take half a minute in all.
const TIMES: u32 = 15;
/// No pause is longer, whatever the API server asks for, or a proxy before it.
const LONGEST_ASKED: Duration = Duration::from_secs(30);
/// All pauses of a call together are no longer. Those that nobody asks for are below it by themselves.
const PATIENCE: Duration = Duration::from_secs(40);

/// Makes what tries refusals that pass (429, 503, 504) again, for half a minute, and not before the answer's `Retry-After`, unless that is further
/// away than anybody waits here.
#[must_use]
pub fn retries() -> RetryLayer<Retries> {
    RetryLayer::new(policy())
}

fn policy() -> Retries {
    // it refuses only a first pause that is longer than the longest
    let kubes = RetryPolicy::new(FIRST, LONGEST, TIMES, true).unwrap_or_default();
    Retries { kubes, waited: Duration::ZERO }
}

/// kube's policy, for as long as one may wait.
#[derive(Clone)]
pub struct Retries {
    kubes: RetryPolicy,
    /// All pauses of this call until now.
    waited: Duration,
}

impl<Res> Policy<Request<Body>, Response<Res>, BoxError> for Retries {
    type Future = Sleep;

    fn retry(&mut self, request: &mut Request<Body>, answer: &mut Result<Response<Res>, BoxError>) -> Option<Sleep> {
        let pause = self.kubes.retry(request, answer)?;
        let asked = pause.deadline().saturating_duration_since(Instant::now());
        let waits = asked.min(LONGEST_ASKED);
        self.waited += waits;
        if self.waited > PATIENCE {
            return None;
        }
        Some(if asked > LONGEST_ASKED { sleep(LONGEST_ASKED) } else { pause })
    }

    fn clone_request(&mut self, request: &Request<Body>) -> Option<Request<Body>> {
        <RetryPolicy as Policy<Request<Body>, Response<Res>, BoxError>>::clone_request(&mut self.kubes, request)
    }
}

#[cfg(test)]
mod tests {
    use http::StatusCode;

    use super::*;

    /// Returns the pauses after answers of 503.
    fn pauses(retry_after: Option<&str>) -> Vec<Duration> {
        let mut policy = policy();
        let mut request = Request::new(Body::from(Vec::new()));
        let mut answer = Response::builder().status(StatusCode::SERVICE_UNAVAILABLE);
        if let Some(seconds) = retry_after {
            answer = answer.header("Retry-After", seconds);
        }
        let mut refused: Result<Response<()>, BoxError> = Ok(answer.body(()).expect("an answer"));
        let mut pauses = Vec::new();
        loop {
            let begin = Instant::now();
            let Some(pause) = policy.retry(&mut request, &mut refused) else { return pauses };
            pauses.push(pause.deadline().duration_since(begin));
        }
    }

    #[tokio::test]
    async fn a_refusal_that_passes_is_tried_again_for_half_a_minute_and_no_pause_outlasts_the_outage() {
        let all = pauses(None);
        let whole: Duration = all.iter().sum();
        assert_eq!(all.len(), 15);
        assert!(all.iter().all(|pause| *pause < LONGEST + Duration::from_secs(1)), "{all:?}");
        assert!((25..45).contains(&whole.as_secs()), "{whole:?}");
    }

    #[tokio::test]
    async fn the_api_server_is_left_alone_for_as_long_as_it_asks() {
        let all = pauses(Some("7"));
        assert!(all.iter().all(|pause| (7..9).contains(&pause.as_secs())), "{all:?}");
        assert_eq!(all.len(), 5, "and for no longer than half a minute in all");
    }

    #[tokio::test]
    async fn who_asks_for_an_hour_is_asked_again_after_half_a_minute() {
        for asked in ["31", "60", "3600", "18446744073709"] {
            let all = pauses(Some(asked));
            assert!(matches!(all[..], [only] if (29..31).contains(&only.as_secs())), "{asked}: {all:?}");
        }
    }
}
