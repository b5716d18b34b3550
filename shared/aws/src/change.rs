//! Calls to EC2 that change something, or try to. The SDK's own retries of these are off: they would take no token, and go out although
//! another process leads by now. Here each attempt waits for its token, asks whether it may still be made, and then goes out at once.

use crate::config::{Clients, MAX_BACKOFF};
use crate::error::Error;
use crate::pace::{Gate, Token};
use aws_smithy_runtime_api::client::result::SdkError;
use aws_smithy_runtime_api::http::Response;
use aws_smithy_types::error::metadata::ProvideErrorMetadata;
use backon::{ExponentialBuilder, Retryable};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Pause before the second attempt; it doubles from there, with as much again left to chance (the SDK's own begins with as long).
const FIRST_PAUSE: Duration = Duration::from_secs(1);

/// Says whether this process may change anything at this moment. By default it always may.
#[derive(Clone)]
pub struct Permit(Arc<dyn Fn() -> bool + Send + Sync>);

impl Permit {
    /// Makes a permit that is asked by `holds`, before each attempt.
    pub fn new(holds: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(holds))
    }

    fn ask(&self, action: &'static str) -> Result<(), Error> {
        if (self.0)() { Ok(()) } else { Err(Error::Barred { action }) }
    }
}

impl Default for Permit {
    fn default() -> Self {
        Self::new(|| true)
    }
}

impl fmt::Debug for Permit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Permit")
    }
}

/// What a change came to that failed.
#[derive(Debug, Clone)]
pub struct Failed {
    /// The failure of the last attempt.
    pub error: Error,
    /// Any of the attempts may have taken effect: nobody knows.
    pub in_doubt: bool,
}

impl From<Failed> for Error {
    fn from(failed: Failed) -> Self {
        failed.error
    }
}

impl Clients {
    /// Makes a call of [`Clients::ec2_once`], and makes it again while its failure may pass. All attempts are one request to EC2: `call`
    /// sends the same client token each time, or asks for what is the same when done twice.
    pub(crate) async fn change<T, E, F>(
        &self,
        action: &'static str,
        gate: &Gate,
        call: impl Fn() -> F,
    ) -> Result<T, Error>
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
        F: Future<Output = Result<T, SdkError<E, Response>>>,
    {
        Ok(self.change_on(action, gate, None, call).await?)
    }

    /// The same with the first attempt's token taken before, and told whether anything may have come of it.
    pub(crate) async fn change_on<T, E, F>(
        &self,
        action: &'static str,
        gate: &Gate,
        token: Option<Token>,
        call: impl Fn() -> F,
    ) -> Result<T, Failed>
    where
        E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
        F: Future<Output = Result<T, SdkError<E, Response>>>,
    {
        let (token, in_doubt) = (Mutex::new(token), AtomicBool::new(false));
        let attempt = || async {
            let taken = token.lock().unwrap_or_else(PoisonError::into_inner).take();
            if taken.is_none() {
                gate.take().await;
            }
            self.permit().ask(action)?;
            call().await.map_err(|error| {
                let error = Error::from_sdk(action, error);
                in_doubt.fetch_or(error.outcome_unknown(), Ordering::Relaxed);
                error
            })
        };
        let pauses = ExponentialBuilder::default()
            .with_min_delay(FIRST_PAUSE)
            .with_max_delay(MAX_BACKOFF)
            .with_max_times(self.max_attempts().saturating_sub(1) as usize)
            .with_jitter();
        let answer = attempt.retry(pauses).when(Error::may_pass).await;
        answer.map_err(|error| Failed { error, in_doubt: in_doubt.load(Ordering::Relaxed) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{AccessKeys, Settings};
    use aws_sdk_ec2::operation::terminate_instances::TerminateInstancesError as Failed;
    use aws_smithy_types::error::ErrorMetadata;
    use karp_domain::pace::Rate;
    use std::sync::atomic::AtomicU32;
    use std::time::Instant;

    const ACTION: &str = "ec2:Test";

    async fn clients(permit: Permit) -> Clients {
        let keys = AccessKeys { access_key_id: "a".into(), secret_access_key: "s".into(), session_token: None };
        let settings = Settings {
            region: Some("eu-west-1".into()),
            access_keys: Some(keys),
            max_attempts: Some(2),
            permit,
            ..Settings::default()
        };
        Clients::load(&settings).await.expect("settings are complete")
    }

    fn refusal(code: &str) -> SdkError<Failed, Response> {
        let error = Failed::generic(ErrorMetadata::builder().code(code).build());
        let status = 503.try_into().expect("a status");
        SdkError::service_error(error, Response::new(status, aws_smithy_types::body::SdkBody::empty()))
    }

    #[tokio::test]
    async fn each_attempt_takes_a_token_and_then_asks_whether_it_may_be_made() {
        let asked = Arc::new(AtomicU32::new(0));
        let counted = asked.clone();
        let clients = clients(Permit::new(move || counted.fetch_add(1, Ordering::Relaxed) == 0)).await;
        let every = FIRST_PAUSE * 2;
        let gate = Gate::new(Rate { every, burst: 1 });
        let sent = AtomicU32::new(0);
        let begin = Instant::now();
        let answer: Result<(), Error> = clients
            .change(ACTION, &gate, || async {
                sent.fetch_add(1, Ordering::Relaxed);
                Err(refusal("RequestLimitExceeded"))
            })
            .await;
        assert!(matches!(answer, Err(Error::Barred { action: ACTION })), "{answer:?}");
        assert_eq!((asked.load(Ordering::Relaxed), sent.load(Ordering::Relaxed)), (2, 1), "the second was not sent");
        assert!(
            begin.elapsed() >= every - Duration::from_millis(50),
            "the token was waited for: {:?}",
            begin.elapsed()
        );
    }

    #[tokio::test]
    async fn a_doubt_stays_whatever_the_last_attempt_says() {
        let clients = clients(Permit::default()).await;
        let failed = async |codes: [&str; 2]| {
            let sent = AtomicU32::new(0);
            let call = || {
                let nth = sent.fetch_add(1, Ordering::Relaxed) as usize;
                let answer: Result<(), _> = Err(match codes[nth] {
                    "cut" => SdkError::timeout_error("no answer"),
                    code => refusal(code),
                });
                async { answer }
            };
            clients.change_on(ACTION, &clients.pace().mutate, Some(Token::free()), call).await.expect_err("refused")
        };
        let throttle = "RequestLimitExceeded";
        assert!(failed(["cut", throttle]).await.in_doubt);
        assert!(failed(["cut", "UnauthorizedOperation"]).await.in_doubt, "the first may have done it");
        assert!(!failed([throttle, throttle]).await.in_doubt);
    }

    #[tokio::test]
    async fn what_does_not_pass_is_asked_once_and_what_passes_as_often_as_is_set() {
        let clients = clients(Permit::default()).await;
        for (code, attempts) in [("UnauthorizedOperation", 1), ("DryRunOperation", 1), ("InternalError", 2)] {
            let sent = AtomicU32::new(0);
            let answer: Result<(), Error> = clients
                .change(ACTION, &clients.pace().mutate, || async {
                    sent.fetch_add(1, Ordering::Relaxed);
                    Err(refusal(code))
                })
                .await;
            assert_eq!(answer.expect_err("refused").code(), Some(code));
            assert_eq!(sent.load(Ordering::Relaxed), attempts, "{code}");
        }
    }
}
