//! Readers of the network: operations, requests over HTTP, tokens, MCP, and the file of settings.

use crate::seeds::file;
use crate::{stage, text_of};
use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, Response};
use everturn_api::decode::RawRequest;
use everturn_api::{Requester, Row, TABLE};
use everturn_core::Error;
use everturn_engine::Everturn;
use everturn_engine::model::wait;
use everturn_server::{
    App, Config, Hidden, Jwt, JwtKeys, Limits, Settings, Stdio, Toolsets, document, router, serve_pipes,
};
use http_body::Body as _;
use jsonwebtoken::{Algorithm, EncodingKey, Header};
use serde_json::{Value, json};
use std::cell::RefCell;
use std::path::PathBuf;
use std::sync::{Arc, LazyLock};
use std::time::Duration;
use tokio::runtime::Runtime;
use tower::ServiceExt;

/// Inputs that share a store: it grows with each.
const INPUTS_MAX: u32 = 200;

/// Something that is made anew after [`INPUTS_MAX`] inputs.
struct Renewed<T> {
    value: T,
    make: fn() -> T,
    inputs: u32,
}

impl<T> Renewed<T> {
    fn new(make: fn() -> T) -> Renewed<T> {
        Renewed { value: make(), make, inputs: 0 }
    }

    fn next(&mut self) -> &T {
        self.inputs += 1;
        if self.inputs > INPUTS_MAX {
            (self.value, self.inputs) = ((self.make)(), 1);
        }
        &self.value
    }
}

static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
});

fn furnished() -> Everturn {
    let store = stage::store();
    stage::furnish(&store.tenant("default").unwrap());
    store
}

fn secret_of(_: &str) -> Option<String> {
    Some("0123456789abcdef0123456789abcdef".into())
}

/// An operation: its name in the first line, fields as in a query in the second, and the body. What can be read is run.
pub fn operation(bytes: &[u8]) {
    thread_local! {
        static STORE: RefCell<Renewed<Everturn>> = RefCell::new(Renewed::new(furnished));
    }
    let text = &*text_of(bytes);
    let mut parts = text.splitn(3, '\n');
    let (name, fields, body) = (
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
        parts.next().unwrap_or_default(),
    );
    let Some(row) = Row::named(name).or_else(|| TABLE.get(name.len())) else { return };
    let fields = fields.split('&').filter_map(|field| field.split_once('='));
    let fields: Vec<(String, String)> = fields.map(|(name, value)| (name.into(), value.into())).collect();
    let in_path = RawRequest { path: fields.clone(), body, ..RawRequest::default() };
    let in_query = RawRequest { query: fields, body, ..RawRequest::default() };
    for request in [in_path, in_query] {
        match (row.read)(&request) {
            Ok(operation) => STORE.with_borrow_mut(|store| {
                let tenant = store.next().tenant("default").unwrap();
                let answer = wait(operation.run(Requester::here(tenant), "/x".into()));
                if let Err(Error::Internal(error) | Error::Corrupt(error)) = answer.map(drop) {
                    panic!("{name}: {}: {}", error.code, error.text);
                }
            }),
            Err(wrong) => assert!(!wrong.text.is_empty()),
        }
    }
}

/// The operations of the description, each with the fields of its path and its example.
fn described() -> Vec<(String, String, String, String)> {
    let document: Value = serde_json::from_str(&document()).unwrap();
    let mut all = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            let content = &operation["requestBody"]["content"]["application/json"];
            let example =
                [&content["example"], &content["schema"]["example"], &content["schema"]["examples"][0]];
            let example = example.into_iter().find(|value| !value.is_null()).cloned().unwrap_or(json!({}));
            let name = operation["operationId"].as_str().unwrap_or_default().to_string();
            all.push((name, method.to_uppercase(), path.clone(), example.to_string()));
        }
    }
    all
}

/// An operation of each kind.
pub fn operations() -> Vec<Vec<u8>> {
    let id = stage::conversation();
    let input = |(name, _, _, body)| format!("{name}\nconversation={id}\n{body}").into_bytes();
    described().into_iter().map(input).collect()
}

/// A request over HTTP: the first line, headers, an empty line, the body. Whatever it is, the answer is not 500.
pub fn http(bytes: &[u8]) {
    thread_local! {
        static ROUTER: RefCell<Renewed<Router>> = RefCell::new(Renewed::new(|| serving(keyless())));
    }
    let text = &*text_of(bytes);
    let (head, body) = text.split_once("\n\n").unwrap_or((text, ""));
    let Some(request) = request(head, body) else { return };
    let router = ROUTER.with_borrow_mut(|router| router.next().clone());
    let (status, answer) = answered(router, request);
    assert_ne!(status, 500, "{answer}");
}

fn keyless() -> App {
    let config = Config { keys_required: Some(false), ..Config::default() };
    App::new(furnished(), config)
}

fn serving(app: App) -> Router {
    // Routes of MCP start tasks.
    let _inside = RUNTIME.enter();
    router(Arc::new(app))
}

/// `None` if it is none that a connection would pass on.
fn request(head: &str, body: &str) -> Option<Request<Body>> {
    let mut lines = head.lines();
    let (method, target) = lines.next()?.split_once(' ')?;
    let mut request = Request::builder().method(method).uri(target);
    for (name, value) in lines.filter_map(|line| line.split_once(':')) {
        request = request.header(name, value.trim());
    }
    let names = request.headers_ref()?;
    let (host, kind) = (names.contains_key("host"), names.contains_key("content-type"));
    let request = if host { request } else { request.header("host", "localhost") };
    let request = if kind { request } else { request.header("content-type", "application/json") };
    request.body(Body::from(body.to_string())).ok()
}

/// Status and body of an answer. The body of a stream is not waited for.
fn answered(router: Router, request: Request<Body>) -> (u16, String) {
    RUNTIME.block_on(async {
        let response: Response<Body> = router.oneshot(request).await.unwrap();
        let status = response.status().as_u16();
        if response.body().size_hint().exact().is_none() {
            return (status, String::new());
        }
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8_lossy(&body).into_owned())
    })
}

/// A request for each route of the description, and for those of other people's clients.
pub fn requests() -> Vec<Vec<u8>> {
    let id = stage::conversation().to_string();
    let described = described().into_iter().map(|(_, method, path, body)| {
        format!("{method} {}\n\n{body}", path.replace("{conversation}", &id).replace(['{', '}'], ""))
    });
    let mcp = r#"{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}"#;
    let others = [
        r#"POST /v1/chat/completions

{"model":"m","messages":[{"role":"user","content":"Hi"}],"stream":true}"#
            .to_string(),
        r#"POST /v1/responses

{"model":"m","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"Hi"}]}],"conversation":"CONV","tools":[]}"#
            .replace("CONV", &id),
        r#"POST /v1/messages

{"model":"m","max_tokens":9,"messages":[{"role":"user","content":"Hi"}]}"#
            .to_string(),
        "POST /v1/conversations\n\n{\"items\":[{\"type\":\"message\",\"role\":\"user\",\"content\":\"Hi\"}]}".to_string(),
        "POST /v1/embeddings\n\n{\"model\":\"m\",\"input\":[[1,2],\"x\"]}".to_string(),
        format!("POST /mcp\naccept: application/json, text/event-stream\n\n{mcp}"),
        format!("GET /api/v1/conversations/{id}/turns?limit=2&order=desc\neverturn-actor: ana\neverturn-seq: 1\n\n"),
        format!("GET /api/v1/conversations/{id}/events?after=1&limit=3\nlast-event-id: 3\n\n"),
        "GET /v1/models\nauthorization: Bearer et_x\nx-forwarded-for: 1.2.3.4\n\n".to_string(),
        "GET /\nif-none-match: \"x\", W/\"y\"\nrange: bytes=0-3\n\n".to_string(),
        format!("POST /api/v1/import?name=x\ncontent-type: application/octet-stream\n\n{{\"role\":\"user\",\"content\":\"{id}\"}}\n"),
    ];
    described.chain(others).map(String::into_bytes).collect()
}

/// A credential: an object is signed as the claims of a token, any other text is sent as it is. Whoever gets in has a role and
/// a tenant that the claims name.
pub fn token(bytes: &[u8]) {
    thread_local! {
        static ROUTER: RefCell<Renewed<Router>> = RefCell::new(Renewed::new(|| serving(signing())));
    }
    let text = &*text_of(bytes);
    let claims = serde_json::from_str::<Value>(text).ok().filter(Value::is_object);
    let token = match &claims {
        Some(claims) => {
            let key = EncodingKey::from_secret(secret_of("").unwrap().as_bytes());
            jsonwebtoken::encode(&Header::new(Algorithm::HS256), claims, &key).unwrap()
        }
        None => text.to_string(),
    };
    let Some(request) = request(&format!("GET /api/v1/whoami\nauthorization: Bearer {token}"), "") else {
        return;
    };
    let router = ROUTER.with_borrow_mut(|router| router.next().clone());
    let (status, answer) = answered(router, request);
    if status == 200 {
        let (claims, answer): (Value, Value) = (claims.unwrap(), serde_json::from_str(&answer).unwrap());
        assert_eq!((&answer["tenant"], &answer["role"]), (&claims["tenant"], &claims["role"]), "{answer}");
    } else {
        assert!([400, 401, 403, 429].contains(&status), "{status}: {answer}");
    }
}

fn signing() -> App {
    let jwt = Jwt {
        algorithm: Algorithm::HS256,
        keys: JwtKeys::Secret(Hidden(secret_of("").unwrap())),
        refresh: Duration::from_secs(300),
        issuer: None,
        audience: None,
        tenant_claim: "tenant".into(),
        role_claim: "role".into(),
        actors_claim: "actors".into(),
    };
    let limits = Limits {
        failures_per_minute: u32::MAX,
        requests_per_second: u32::MAX,
        burst: u32::MAX,
        ..Limits::default()
    };
    App::new(stage::store_of_today(), Config { jwt: Some(jwt), limits, ..Config::default() })
}

/// Claims of each role, and credentials of other kinds.
pub fn tokens() -> Vec<Vec<u8>> {
    let tokens = [
        r#"{"tenant":"acme","role":"reader","exp":4102444800,"sub":"u"}"#,
        r#"{"tenant":"acme","role":"admin","exp":4102444800.5,"nbf":1,"actors":["ana","ben"]}"#,
        r#"{"tenant":"acme","role":"writer","exp":1e300,"actors":"ana"}"#,
        r#"{"tenant":"acme","role":"counter","exp":"4102444800","actors":[]}"#,
        r#"{"tenant":"../x","role":"reader","exp":-1}"#,
        "et_0123456789abcdef",
        "eyJhbGciOiJub25lIn0.e30.",
        "eyJhbGciOiJIUzI1NiIsImtpZCI6IngifQ.e30.AAAA",
    ];
    tokens.iter().map(|token| token.as_bytes().to_vec()).collect()
}

/// The beginning of a connection over MCP, so that an input gets to the tools.
const HELLO: &str = concat!(
    r#"{"jsonrpc":"2.0","id":"hello","method":"initialize","params":{"protocolVersion":"2025-06-18","capabilities":{},"clientInfo":{"name":"c","version":"1"}}}"#,
    "\n",
    r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
    "\n",
);

/// Lines of a client over MCP, behind the first two: every line that comes back is a message.
pub fn mcp(bytes: &[u8]) {
    thread_local! {
        static STORE: RefCell<Renewed<Everturn>> = RefCell::new(Renewed::new(furnished));
    }
    let tenant = STORE.with_borrow_mut(|store| store.next().tenant("default").unwrap());
    let options = Stdio {
        store: Arc::new(tenant),
        toolsets: "all".parse::<Toolsets>().unwrap(),
        read_only: false,
        record: None,
    };
    let sent = [HELLO.as_bytes(), bytes].concat();
    let came = RUNTIME.block_on(async {
        let (mut client, server) = tokio::io::duplex(64 * 1024);
        let (read, write) = tokio::io::split(server);
        let serving = tokio::spawn(serve_pipes(options, (read, write)));
        let (mut from, mut to) = tokio::io::split(&mut client);
        let send = async {
            use tokio::io::AsyncWriteExt;
            let _ = to.write_all(&sent).await;
            let _ = to.shutdown().await;
        };
        let receive = async {
            use tokio::io::AsyncReadExt;
            let mut came = Vec::new();
            let _ = from.read_to_end(&mut came).await;
            came
        };
        let ((), came) = tokio::join!(send, receive);
        let _ = serving.await.unwrap();
        came
    });
    let lines = came.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    for line in lines {
        let message: Value = serde_json::from_slice(line).unwrap();
        assert_eq!(message["jsonrpc"], "2.0");
        assert_ne!(message["error"]["code"], -32603, "an internal error: {message}");
    }
}

/// Calls of tools, and lines that are none.
pub fn mcp_lines() -> Vec<Vec<u8>> {
    let id = stage::conversation();
    let call = |(name, _, _, body): (String, String, String, String)| {
        let mut arguments: Value = serde_json::from_str(&body).unwrap();
        arguments["conversation"] = json!(id);
        let params = json!({"name": name, "arguments": arguments});
        json!({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).to_string()
    };
    let lines = [
        r#"{"jsonrpc":"2.0","id":1,"method":"tools/list"}"#.to_string(),
        r#"{"jsonrpc":"2.0","id":1,"method":"resources/list"}"#.to_string(),
        format!(r#"{{"jsonrpc":"2.0","id":1,"method":"resources/read","params":{{"uri":"everturn://conversations/{id}"}}}}"#),
        r#"{"jsonrpc":"2.0","id":1,"method":"prompts/get","params":{"name":"continue_conversation","arguments":{"conversation":"@last"}}}"#.to_string(),
        r#"{"jsonrpc":"2.0","id":"\ud800","method":"ping"}"#.to_string(),
        "[]\n\n{\"id\":1}\nx".to_string(),
    ];
    described().into_iter().map(call).chain(lines).map(String::into_bytes).collect()
}

/// The file of settings: it is refused with a reason, or everything that a server takes from it can be made.
pub fn settings(bytes: &[u8]) {
    let file = Some((PathBuf::from("everturn.toml"), text_of(bytes).into_owned()));
    let Ok(settings) = Settings::gather(file, &|_| None, Vec::new()) else { return };
    settings.show();
    let _ = settings.telemetry();
    let _ = settings.config(&secret_of);
}

/// The file of the documentation, and others.
pub fn settings_files() -> Vec<Vec<u8>> {
    let page = file("docs/serve.md");
    let example = page.split("<<'END'\n").nth(1).and_then(|rest| rest.split("\nEND").next()).unwrap();
    let others = [
        "store = \"postgres://u:p@h/d\"\nbody_bytes_max = 1\n[limits]\nburst = 0\n[keys]\nrequired = true\n",
        "prices = [\"gpt-4.1 2.00 8.00\"]\n[quotas.tenants.acme]\nturns = 5\n[cors]\norigins = [\"https://a\"]\n",
        "[jwt]\nalgorithm = \"RS256\"\njwks_url = \"https://a/b\"\nissuer = \"x\"\n[tls]\ncert = \"a\"\nkey = \"b\"\n",
        "[telemetry]\nlog = \"warn,everturn_server=debug\"\notlp_endpoint = \"http://localhost:4318\"\n",
    ];
    others.iter().chain([&example]).map(|text| text.as_bytes().to_vec()).collect()
}
