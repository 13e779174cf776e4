// SPDX-License-Identifier: Apache-2.0
//! The cloud's metadata service, which has data about this instance and its NICs.
//!
//! | path | content |
//! |---|---|
//! | `/latest/api/token` | token of a session, requested by PUT with `X-aliyun-ecs-metadata-token-ttl-seconds` |
//! | `/latest/meta-data/instance-id` | `i-…` |
//! | `/latest/meta-data/mac` | MAC address of the instance's primary NIC |
//! | `/latest/meta-data/network/interfaces/macs/<mac>/` | `primary-ip-address`, `vswitch-cidr-block`, `gateway` |
//!
//! Each GET request has a token in `X-aliyun-ecs-metadata-token`, because an instance can require it ("security
//! hardening mode"). If the service of an old instance does not support tokens, requests have no token.
//!
//! Requests use plain HTTP to the configured address. They ignore proxies of the environment, because the service
//! answers only the instance itself.

pub mod answers;
pub mod http;

pub use answers::unusable;
pub use http::{Base, InvalidBase};

use crate::conf::NicAddress;
use http_client::{Bytes, HeaderName, HeaderValue, Method, Request, header::HOST};
use rdma_netns::HardwareAddress;
use std::{
    io,
    time::{Duration, Instant},
};

const TOKEN: &str = "/latest/api/token";
const INSTANCE_ID: &str = "/latest/meta-data/instance-id";
const PRIMARY: &str = "/latest/meta-data/mac";
const MACS: &str = "/latest/meta-data/network/interfaces/macs";

const TTL_HEADER: HeaderName = HeaderName::from_static("x-aliyun-ecs-metadata-token-ttl-seconds");
const TOKEN_HEADER: HeaderName = HeaderName::from_static("x-aliyun-ecs-metadata-token");

/// Requested lifetime of a token in seconds, which is the service's maximum.
const TTL: u64 = 21_600;

/// Time limits and intervals of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// Time limit for a connection.
    pub connect: Duration,
    /// Time limit for one attempt of a request, including the connection.
    pub whole: Duration,
    /// Number of attempts for a request that gets no complete answer, or the status 429 or 5xx.
    pub attempts: u32,
    /// Pause before the second attempt. The pause doubles before each later attempt.
    pub pause: Duration,
    /// Pause before the daemon repeats a failed request. The pause doubles with each repetition.
    pub again: Duration,
    /// Upper limit of the pause `again`.
    pub longest: Duration,
    /// Time after which a NIC that is up without an address counts as unconfigured. Until then DHCP may still assign an
    /// address.
    pub quiet: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(1),
            whole: Duration::from_secs(2),
            attempts: 3,
            pause: Duration::from_millis(200),
            again: Duration::from_secs(2),
            longest: Duration::from_secs(60),
            quiet: Duration::from_secs(30),
        }
    }
}

/// Error of a request to the metadata service.
#[derive(Debug, thiserror::Error)]
pub enum MetadataError {
    /// The connection failed.
    #[error("the metadata service at {base} cannot be reached: {source}")]
    Unreachable {
        /// Base URL of the service.
        base: Base,
        /// Error of the system.
        source: io::Error,
    },
    /// The connection succeeded, but the answer took longer than the time limit.
    #[error("the metadata service has not answered for {place} within {limit:?}")]
    Slow {
        /// Path of the request.
        place: String,
        /// Time limit.
        limit: Duration,
    },
    /// The answer is not HTTP, or is incomplete.
    #[error("the metadata service's answer for {place} is broken: {source}")]
    Broken {
        /// Path of the request.
        place: String,
        /// Reason.
        source: io::Error,
    },
    /// The status of the answer is an error.
    #[error("the metadata service answers {status} for {place}")]
    Refused {
        /// Path of the request.
        place: String,
        /// HTTP status code.
        status: u16,
    },
    /// The service does not have the path (404).
    #[error("the metadata service has no {place}")]
    Unknown {
        /// Path of the request.
        place: String,
    },
    /// The answer is malformed.
    #[error("the metadata service's {place} is {value:?}, {why}")]
    Garbage {
        /// Path of the request.
        place: String,
        /// Start of the answer.
        value: String,
        /// Defect of the answer.
        why: String,
    },
}

impl MetadataError {
    /// Returns true if the whole service has failed. Other requests would then fail, too.
    pub fn is_of_the_service(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Slow { .. } => true,
            Self::Refused { status, .. } => *status != 404,
            Self::Broken { .. } | Self::Unknown { .. } | Self::Garbage { .. } => false,
        }
    }
}

/// Session with the service.
#[derive(Clone, Debug)]
enum Session {
    /// There is no valid token.
    None,
    /// Requests have this token, until the given time.
    Token(HeaderValue, Instant),
    /// Requests have no token: the service does not support tokens.
    Plain,
}

/// Metadata service at one base URL.
#[derive(Debug)]
pub struct Metadata {
    base: Base,
    pace: Pace,
    session: Session,
}

impl Metadata {
    /// Returns the service at the base URL `base`, such as `http://100.100.100.200`. Sends no request.
    ///
    /// # Errors
    /// `base` is not a base URL.
    pub fn new(base: &str) -> Result<Self, InvalidBase> {
        Ok(Self::with_pace(base.parse()?, Pace::default()))
    }

    /// Returns the service like [`Metadata::new`], with other limits.
    pub fn with_pace(base: Base, pace: Pace) -> Self {
        Self {
            base,
            pace,
            session: Session::None,
        }
    }

    /// Returns this instance's id, `i-…`.
    ///
    /// # Errors
    /// [`MetadataError`]
    pub async fn instance_id(&mut self) -> Result<String, MetadataError> {
        self.line(INSTANCE_ID).await
    }

    /// Returns the MAC address of the instance's primary NIC. Returns `None` if the service does not report it.
    ///
    /// # Errors
    /// [`MetadataError`]
    pub async fn primary(&mut self) -> Result<Option<HardwareAddress>, MetadataError> {
        match self.line(PRIMARY).await {
            Ok(line) => answers::mac(PRIMARY, &line).map(Some),
            Err(MetadataError::Unknown { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the address of the NIC with the MAC address `mac`, and the router of its network, if the service reports
    /// one.
    ///
    /// # Errors
    /// [`MetadataError`]. `Unknown`: the instance does not have this NIC.
    pub async fn nic(&mut self, mac: &HardwareAddress) -> Result<NicAddress, MetadataError> {
        let place = |item: &str| format!("{MACS}/{mac}/{item}");
        let ip_place = place("primary-ip-address");
        let ip = self.line(&ip_place).await?;
        let cidr_place = place("vswitch-cidr-block");
        let cidr = self.line(&cidr_place).await?;
        let address = answers::address((&ip_place, &ip), (&cidr_place, &cidr))?;
        let gateway_place = place("gateway");
        let gateway = match self.line(&gateway_place).await {
            Ok(gateway) => Some(answers::gateway(address, (&gateway_place, &gateway))?),
            Err(MetadataError::Unknown { .. }) => None,
            Err(error) => return Err(error),
        };
        Ok(NicAddress {
            mac: mac.clone(),
            address,
            gateway,
        })
    }

    async fn line(&mut self, place: &str) -> Result<String, MetadataError> {
        answers::line(place, &self.get(place).await?)
    }

    /// Sends a GET request. If the service refuses the token, requests a new token and repeats the request once.
    async fn get(&mut self, place: &str) -> Result<Bytes, MetadataError> {
        let mut renewed = false;
        loop {
            let header = self.token().await?.map(|token| (TOKEN_HEADER, token));
            let (status, body) = self.ask(Method::GET, place, header).await?;
            match status {
                200 => return Ok(body),
                404 => {
                    return Err(MetadataError::Unknown {
                        place: place.to_owned(),
                    });
                }
                401 | 403 if !renewed => {
                    renewed = true;
                    self.session = Session::None;
                }
                status => return Err(refused(place, status)),
            }
        }
    }

    /// Returns a valid token. Returns `None` if the service does not support tokens.
    async fn token(&mut self) -> Result<Option<HeaderValue>, MetadataError> {
        match &self.session {
            Session::Plain => return Ok(None),
            Session::Token(token, end) if Instant::now() < *end => return Ok(Some(token.clone())),
            Session::Token(..) | Session::None => {}
        }
        let requested = Instant::now();
        let header = (TTL_HEADER, HeaderValue::from(TTL));
        let (status, body) = self.ask(Method::PUT, TOKEN, Some(header)).await?;
        match status {
            200 => {}
            403..=405 => {
                self.session = Session::Plain;
                return Ok(None);
            }
            status => return Err(refused(TOKEN, status)),
        }
        let line = answers::line(TOKEN, &body)?;
        let token = HeaderValue::try_from(line).map_err(|_| MetadataError::Garbage {
            place: TOKEN.to_owned(),
            value: "…".to_owned(),
            why: "which no header can have".to_owned(),
        })?;
        // renew the token early: it ends by the service's clock, which may be ahead
        let end = requested + Duration::from_secs(TTL / 2);
        self.session = Session::Token(token.clone(), end);
        Ok(Some(token))
    }

    /// Sends the request. Repeats it if no complete answer arrives, or if the status is 429 or 5xx, until all attempts
    /// are used. Does not repeat a request whose answer is too long.
    async fn ask(
        &self,
        method: Method,
        place: &str,
        header: Option<(HeaderName, HeaderValue)>,
    ) -> Result<(u16, Bytes), MetadataError> {
        let mut request = Request::builder()
            .method(method)
            .uri(place)
            .header(HOST, self.base.authority())
            .body(Bytes::new())
            .map_err(|error| MetadataError::Broken {
                place: place.to_owned(),
                source: io::Error::other(error),
            })?;
        request.headers_mut().extend(header);
        let mut pause = self.pace.pause;
        let mut attempt = 1;
        loop {
            let failed = match http::ask(&self.base, &request, &self.pace).await {
                Ok((status, _)) if status == 429 || status >= 500 => refused(place, status),
                Ok(answer) => return Ok(answer),
                Err(error @ MetadataError::Garbage { .. }) => return Err(error),
                Err(error) => error,
            };
            if attempt >= self.pace.attempts {
                return Err(failed);
            }
            log::debug!("{failed}; retrying");
            tokio::time::sleep(pause).await;
            pause *= 2;
            attempt += 1;
        }
    }
}

fn refused(place: &str, status: u16) -> MetadataError {
    MetadataError::Refused {
        place: place.to_owned(),
        status,
    }
}
