// SPDX-License-Identifier: Apache-2.0
//! Field `podArguments`: the properties that a pod may choose by the arguments of its network. Multus reads the
//! arguments from the pod's annotation (`k8s.v1.cni.cncf.io/networks`), and passes them in `runtimeConfig`, `CNI_ARGS`
//! and `args.cni` (`LoadDelegateNetConf()`, `pkg/types/conf.go` of k8snetworkplumbingwg/multus-cni).

use conf_reader::{Field, Wrong};
use std::collections::BTreeMap;

/// Types of plugins that this plugin can replace. With such a type, a pod may always set MAC and GUID.
const DROP_INS: [&str; 2] = ["sriov", "ib-sriov"];

/// An argument by which a pod chooses a property.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Argument {
    /// The hardware address of a virtual function. Even with spoof checking on, the NIC accepts this address from the
    /// pod.
    Mac,
    /// The GUIDs of an InfiniBand function.
    Guid,
}

impl Argument {
    const ALL: [Self; 2] = [Self::Mac, Self::Guid];

    /// Returns the argument's name: as a field of the configuration, in `args.cni`, and in `podArguments`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Mac => "mac",
            Self::Guid => "guid",
        }
    }

    /// Returns the argument's name in `runtimeConfig`.
    fn of_runtime(self) -> &'static str {
        match self {
            Self::Mac => "mac",
            Self::Guid => "infinibandGUID",
        }
    }
}

/// The arguments that a pod may set, with their sources.
#[derive(Debug, Default)]
pub struct PodArguments<'a> {
    allowed: Vec<Argument>,
    /// `MAC` of `CNI_ARGS`.
    mac: Option<&'a String>,
    is_first: bool,
}

impl<'a> PodArguments<'a> {
    /// Reads the arguments that the configuration `file` of this `plugin` allows. `args` (`CNI_ARGS`) and the field
    /// `args` apply to the whole attachment. So this function reads them only if the plugin is the first of its list
    /// (`is_first`).
    ///
    /// # Errors
    /// A value is wrong.
    pub(crate) fn parse(
        file: &Field<'_>,
        plugin: Option<&str>,
        args: &'a BTreeMap<String, String>,
        is_first: bool,
    ) -> Result<Self, Wrong> {
        let mac = args.get("MAC");
        let mut arguments = Self {
            allowed: vec![],
            mac: mac.filter(|it| is_first && !it.is_empty()),
            is_first,
        };
        for field in file.at("podArguments").list()? {
            let mut all = Argument::ALL.into_iter();
            let argument = all.find(|it| field.value().is_some_and(|value| *value == it.name()));
            let wrong = || field.wrong("must be one of mac, guid");
            arguments.allowed.push(argument.ok_or_else(wrong)?);
        }
        if plugin.is_some_and(|it| DROP_INS.contains(&it)) {
            arguments.allowed = Argument::ALL.into();
        }
        // with this field the operator lets ib-kubernetes assign GUIDs
        if file
            .at("ibKubernetesEnabled")
            .value()
            .is_some_and(|it| *it == true)
        {
            arguments.allowed.push(Argument::Guid);
        }
        Ok(arguments)
    }

    pub(crate) fn allows(&self, argument: Argument) -> bool {
        self.allowed.contains(&argument)
    }

    /// Returns `MAC` of `CNI_ARGS`, if the pod may set it.
    pub(crate) fn mac(&self) -> Option<&'a String> {
        self.mac.filter(|_| self.allows(Argument::Mac))
    }

    /// Returns the fields by which the pod can set `argument`, in order of precedence. `runtimeConfig` is the first.
    ///
    /// # Errors
    /// A field is no object.
    pub(crate) fn places<'b>(
        &self,
        file: &Field<'b>,
        argument: Argument,
    ) -> Result<Vec<Field<'b>>, Wrong> {
        let runtime = file.object("runtimeConfig")?;
        let mut places = vec![runtime.at(argument.of_runtime())];
        let args = file.object("args")?;
        if self.is_first {
            places.push(args.at("cni").at(argument.name()));
        }
        Ok(places)
    }

    /// Returns the names of arguments that the pod has set, but may not set.
    ///
    /// # Errors
    /// See [`Self::places`].
    pub(crate) fn disallowed(&self, file: &Field<'_>) -> Result<Vec<&'static str>, Wrong> {
        let mut disallowed = vec![];
        for argument in Argument::ALL.into_iter().filter(|it| !self.allows(*it)) {
            let places = self.places(file, argument)?;
            let mut values = places.iter().filter_map(Field::value);
            let is_set = values.any(|it| !it.is_null() && *it != "");
            if is_set || argument == Argument::Mac && self.mac.is_some() {
                disallowed.push(argument.name());
            }
        }
        Ok(disallowed)
    }
}
