//! Neither what a controller logs with everything on nor what it tells its nodes holds a secret.

use super::support::stand::Stand;

/// Neither the session at AWS nor the account's token at the API server can be read from the log, or by whoever may read user data.
#[tokio::test]
async fn no_secret_is_logged_or_told_to_a_node() {
    let Some(mut stand) = Stand::open("secrets").await else { return };
    stand.pool(&["on-demand"]).await;
    stand.start_with(&[("RUST_LOG", "trace")]);
    stand.deployment(1, "500m").await;
    stand.until_running(1).await;
    let log = stand.log();
    let traced = log.lines().filter(|line| line.contains(r#""level":"TRACE""#)).count();
    assert!(traced > 1000, "little is traced: {traced} lines");
    let user_data = stand.aws.user_data(&stand.name).await;
    assert!(!user_data.is_empty() && user_data.iter().all(|text| text.contains(&stand.aws.cluster)), "{user_data:?}");
    for (name, secret) in stand.secrets() {
        assert!(!user_data.iter().any(|text| text.contains(&secret)), "user data tells the {name}");
        let told: Vec<&str> = log.lines().filter(|line| line.contains(&secret)).take(3).collect();
        let told: Vec<String> = told.iter().map(|line| line.chars().take(300).collect()).collect();
        assert!(told.is_empty(), "the log tells the {name}: {told:#?}");
    }
    stand.leave().await;
}
