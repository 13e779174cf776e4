// SPDX-License-Identifier: Apache-2.0
//! The cloud's metadata service: what it knows of this instance and of its NICs.
//!
//! | path | has |
//! |---|---|
//! | `/latest/api/token` | by PUT, a session's token; asked for with `X-aliyun-ecs-metadata-token-ttl-seconds` |
//! | `/latest/meta-data/instance-id` | `i-…` |
//! | `/latest/meta-data/mac` | the hardware address of the instance's primary NIC |
//! | `/latest/meta-data/network/interfaces/macs/<mac>/` | `primary-ip-address`, `vswitch-cidr-block`, `gateway` |
//!
//! Every request has the token in `X-aliyun-ecs-metadata-token`, which an instance can require
//! ("security hardening mode"). A service that gives none, of an older instance, is asked without.
//! Requests go straight to the configured address, in plain HTTP, whatever proxy the environment
//! names: the service answers nobody but the instance itself.

pub mod answers;
pub mod http;

pub use answers::unusable;
pub use http::{Base, InvalidBase};

use crate::conf::NicAddress;
use http::{Question, Reply};
use hyper::{
    Method,
    header::{HeaderName, HeaderValue},
};
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

/// How long a token is asked to live, seconds: the longest that the service gives.
const TTL: u64 = 21_600;

/// How long and how often is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// For a connection.
    pub connect: Duration,
    /// For a whole request, the connection included.
    pub whole: Duration,
    /// How often a request is made that gets no answer, or one of "later" (429, 5xx).
    pub attempts: u32,
    /// Before the second attempt; twice as long before each later one.
    pub pause: Duration,
    /// Before what was not told is asked for anew; twice as long each time.
    pub again: Duration,
    /// But never longer than this.
    pub longest: Duration,
    /// For how long a NIC that is up already has to be without an address before it is taken to be
    /// nobody's: DHCP may be giving it one.
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

/// What was asked for is not known.
#[derive(Debug, thiserror::Error)]
pub enum MetadataError {
    /// No connection.
    #[error("the metadata service at {base} cannot be reached: {source}")]
    Unreachable {
        /// Where it was looked for.
        base: Base,
        /// The system's answer.
        source: io::Error,
    },
    /// A connection, and no answer in time.
    #[error("the metadata service has not answered for {place} within {limit:?}")]
    Slow {
        /// The path.
        place: String,
        /// How long was waited.
        limit: Duration,
    },
    /// An answer that is not HTTP, or ends early.
    #[error("the metadata service's answer for {place} is broken: {source}")]
    Broken {
        /// The path.
        place: String,
        /// What is wrong.
        source: io::Error,
    },
    /// An answer that says no.
    #[error("the metadata service answers {status} for {place}")]
    Refused {
        /// The path.
        place: String,
        /// HTTP's number of it.
        status: u16,
    },
    /// The service has no such thing (404).
    #[error("the metadata service has no {place}")]
    Unknown {
        /// The path.
        place: String,
    },
    /// An answer that is not what it has to be.
    #[error("the metadata service's {place} is {value:?}, {why}")]
    Garbage {
        /// The path.
        place: String,
        /// The answer, shortened.
        value: String,
        /// What is wrong with it.
        why: String,
    },
}

impl MetadataError {
    /// Whether other questions would be answered no better now.
    pub fn is_of_the_service(&self) -> bool {
        match self {
            Self::Unreachable { .. } | Self::Slow { .. } => true,
            Self::Refused { status, .. } => *status != 404,
            Self::Broken { .. } | Self::Unknown { .. } | Self::Garbage { .. } => false,
        }
    }
}

/// How requests are made.
#[derive(Clone, Debug)]
enum Session {
    /// Nothing was asked yet, or the token is no good any more.
    None,
    /// With this token, until then.
    Token(HeaderValue, Instant),
    /// Without: the service gives no tokens.
    Plain,
}

/// The service of one base address.
#[derive(Debug)]
pub struct Metadata {
    base: Base,
    pace: Pace,
    session: Session,
}

impl Metadata {
    /// The service at `base`, `http://100.100.100.200`. Nothing is asked yet.
    ///
    /// # Errors
    /// A text that is no such address.
    pub fn new(base: &str) -> Result<Self, InvalidBase> {
        Ok(Self::with_pace(base.parse()?, Pace::default()))
    }

    /// The same, with another patience.
    pub fn with_pace(base: Base, pace: Pace) -> Self {
        Self {
            base,
            pace,
            session: Session::None,
        }
    }

    /// This instance's id, `i-…`.
    ///
    /// # Errors
    /// [`MetadataError`]
    pub async fn instance_id(&mut self) -> Result<String, MetadataError> {
        self.line(INSTANCE_ID).await
    }

    /// The hardware address of the instance's primary NIC; none: the service does not know.
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

    /// The address of the NIC that has `mac`, its network, and the network's router, if it has
    /// one.
    ///
    /// # Errors
    /// [`MetadataError`]; `Unknown`: the cloud knows no such NIC of this instance.
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
        let reply = self.get(place).await?;
        answers::line(place, &reply.body)
    }

    /// A token that is refused is renewed, once.
    async fn get(&mut self, place: &str) -> Result<Reply, MetadataError> {
        let mut renewed = false;
        loop {
            let header = self.token().await?.map(|token| (TOKEN_HEADER, token));
            let question = Question {
                method: Method::GET,
                path: place,
                header,
            };
            let reply = self.ask(&question).await?;
            match reply.status {
                200 => return Ok(reply),
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

    /// None: requests go without.
    async fn token(&mut self) -> Result<Option<HeaderValue>, MetadataError> {
        match &self.session {
            Session::Plain => return Ok(None),
            Session::Token(token, end) if Instant::now() < *end => return Ok(Some(token.clone())),
            Session::Token(..) | Session::None => {}
        }
        let asked = Instant::now();
        let question = Question {
            method: Method::PUT,
            path: TOKEN,
            header: Some((TTL_HEADER, HeaderValue::from(TTL))),
        };
        let reply = self.ask(&question).await?;
        match reply.status {
            200 => {}
            403..=405 => {
                self.session = Session::Plain;
                return Ok(None);
            }
            status => return Err(refused(TOKEN, status)),
        }
        let line = answers::line(TOKEN, &reply.body)?;
        let token = HeaderValue::try_from(line).map_err(|_| MetadataError::Garbage {
            place: TOKEN.to_owned(),
            value: "…".to_owned(),
            why: "which no header can have".to_owned(),
        })?;
        // renewed long before its end, which the service counts by its own clock
        let end = asked + Duration::from_secs(TTL / 2);
        self.session = Session::Token(token.clone(), end);
        Ok(Some(token))
    }

    /// Asks until there is an answer, or patience is over.
    async fn ask(&self, question: &Question<'_>) -> Result<Reply, MetadataError> {
        let Pace { connect, whole, .. } = self.pace;
        let mut pause = self.pace.pause;
        let mut attempt = 1;
        loop {
            let reply = http::ask(&self.base, question, connect, whole).await;
            let failed = match reply {
                Ok(reply) if reply.status == 429 || reply.status >= 500 => {
                    refused(question.path, reply.status)
                }
                Ok(reply) => return Ok(reply),
                Err(error @ MetadataError::Garbage { .. }) => return Err(error),
                Err(error) => error,
            };
            if attempt >= self.pace.attempts {
                return Err(failed);
            }
            log::debug!("{failed}; asking again");
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
