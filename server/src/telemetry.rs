//! Logs and traces: to standard error, and to an OpenTelemetry collector if configured.

use async_trait::async_trait;
use everturn_core::Error;
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use std::io::IsTerminal;
use std::time::Duration;
use tokio::runtime::Handle;
use tracing::{Level, Subscriber};
use tracing_subscriber::filter::filter_fn;
use tracing_subscriber::layer::{Layer, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, fmt};

const EXPORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Configuration of logs and traces.
#[derive(Clone, Debug)]
pub struct Telemetry {
    /// Log level: `error`, `warn`, `info`, `debug`, or directives such as `warn,everturn_server=debug`.
    pub log: String,
    /// Whether lines are JSON; by default unless standard error is a terminal.
    pub json: Option<bool>,
    /// An OpenTelemetry collector, such as `http://localhost:4318`.
    pub otlp_endpoint: Option<String>,
    /// Service name for the collector.
    pub service_name: String,
}

/// Running telemetry; flushes when it ends.
pub struct TelemetryGuard {
    provider: Option<SdkTracerProvider>,
}

impl Telemetry {
    /// Starts telemetry for the whole process. Must be called inside a runtime that lives until
    /// [`TelemetryGuard::end`].
    pub fn begin(&self) -> Result<TelemetryGuard, Error> {
        let filter = self.filter()?;
        let lines = self.lines(std::io::stderr, std::io::stderr().is_terminal());
        let provider = self.otlp_endpoint.as_deref().map(|url| self.exporter(url)).transpose()?;
        let spans = provider.as_ref().map(layer);
        let begun = tracing_subscriber::registry().with(lines.with_filter(filter)).with(spans).try_init();
        begun.map_err(|e| Error::internal("telemetry", format!("logging cannot start: {e}")))?;
        Ok(TelemetryGuard { provider })
    }

    fn filter(&self) -> Result<EnvFilter, Error> {
        let plain = matches!(self.log.as_str(), "error" | "warn" | "info" | "debug" | "trace" | "off");
        // Logs of libraries are only useful when something is wrong; rmcp would log content, and the pool warns of every
        // connection that the database has closed.
        let level = &self.log;
        let directives = if plain {
            format!(
                "warn,rmcp=error,deadpool=error,everturn_server={level},everturn={level},everturn_store={level}"
            )
        } else {
            self.log.clone()
        };
        EnvFilter::try_new(directives)
            .map_err(|e| Error::invalid("config.value", format!("telemetry.log: {e}; use info, or debug")))
    }

    fn lines<S, W>(&self, writer: W, terminal: bool) -> Box<dyn Layer<S> + Send + Sync>
    where
        S: Subscriber + for<'a> LookupSpan<'a>,
        W: for<'w> fmt::MakeWriter<'w> + Send + Sync + 'static,
    {
        let lines = fmt::layer().with_writer(writer).with_ansi(terminal).with_target(false);
        match self.json.unwrap_or(!terminal) {
            true => lines.json().flatten_event(true).with_span_list(false).boxed(),
            false => lines.boxed(),
        }
    }

    fn exporter(&self, endpoint: &str) -> Result<SdkTracerProvider, Error> {
        let cannot = |e: &dyn std::fmt::Display| {
            let endpoint = crate::settings::without_password(endpoint);
            Error::invalid("telemetry.otlp", format!("cannot export to {endpoint}: {e}"))
        };
        let base = endpoint.trim_end_matches('/');
        let url = if base.ends_with("/v1/traces") { base.to_string() } else { format!("{base}/v1/traces") };
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Client::new().map_err(|e| cannot(&e))?)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(url)
            .with_timeout(EXPORT_TIMEOUT)
            .build()
            .map_err(|e| cannot(&e))?;
        let version = opentelemetry::KeyValue::new("service.version", env!("CARGO_PKG_VERSION"));
        let resource = Resource::builder().with_service_name(self.service_name.clone());
        let resource = resource.with_attribute(version).build();
        Ok(SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build())
    }

    /// The same without changing the process: lines go to `writer`. For tests.
    pub fn subscriber<W>(
        &self,
        writer: W,
    ) -> Result<(impl Subscriber + Send + Sync + use<W>, TelemetryGuard), Error>
    where
        W: for<'w> fmt::MakeWriter<'w> + Send + Sync + 'static,
    {
        let provider = self.otlp_endpoint.as_deref().map(|url| self.exporter(url)).transpose()?;
        let spans = provider.as_ref().map(layer);
        let lines = self.lines(writer, false).with_filter(self.filter()?);
        let subscriber = Registry::default().with(lines).with(spans);
        Ok((subscriber, TelemetryGuard { provider }))
    }
}

fn layer<S>(provider: &SdkTracerProvider) -> Box<dyn Layer<S> + Send + Sync>
where
    S: Subscriber + for<'a> LookupSpan<'a> + Send + Sync,
{
    let tracer = provider.tracer("everturn");
    let layer = tracing_opentelemetry::layer().with_tracer(tracer);
    // All of our spans, at any log level, and those of our events that are logged by default.
    let exported = filter_fn(|metadata| {
        metadata.target().starts_with("everturn") && (metadata.is_span() || *metadata.level() <= Level::INFO)
    });
    // The source location of a span does not help its reader.
    layer.with_location(false).with_threads(false).with_filter(exported).boxed()
}

impl TelemetryGuard {
    /// Flushes. Blocks.
    pub fn end(self) {
        if let Some(Err(error)) = self.provider.map(|provider| provider.shutdown()) {
            tracing::warn!(%error, "the last spans could not be exported");
        }
    }
}

/// The exporter runs on a thread of its own; its requests run on our runtime.
#[derive(Debug)]
struct Client {
    http: reqwest::Client,
    runtime: Handle,
}

impl Client {
    fn new() -> Result<Client, reqwest::Error> {
        crate::tls::provide();
        let http = reqwest::Client::builder().timeout(EXPORT_TIMEOUT).no_proxy().build()?;
        Ok(Client { http, runtime: Handle::current() })
    }
}

#[async_trait]
impl HttpClient for Client {
    async fn send_bytes(&self, request: Request<Bytes>) -> Result<Response<Bytes>, HttpError> {
        let http = self.http.clone();
        let sent = self.runtime.spawn(async move {
            let (parts, body) = request.into_parts();
            let url = parts.uri.to_string();
            let asked = http.request(parts.method, url).headers(parts.headers).body(body);
            let answer = asked.send().await?;
            let status = answer.status();
            Ok::<_, reqwest::Error>((status, answer.bytes().await?))
        });
        let (status, body) = sent.await??;
        Ok(Response::builder().status(status).body(body)?)
    }
}
