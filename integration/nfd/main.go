// SPDX-License-Identifier: Apache-2.0

// The program prints, as JSON, the labels that node-feature-discovery's own "local" source makes of the files in
// /etc/kubernetes/node-feature-discovery/features.d: what its worker puts on the node.
package main

import (
	"encoding/json"
	"log"
	"os"

	"sigs.k8s.io/node-feature-discovery/source"
	"sigs.k8s.io/node-feature-discovery/source/local"
)

func main() {
	if err := source.GetFeatureSource(local.Name).Discover(); err != nil {
		log.Fatal(err)
	}
	labels, err := source.GetLabelSource(local.Name).GetLabels()
	if err != nil {
		log.Fatal(err)
	}
	if err := json.NewEncoder(os.Stdout).Encode(labels); err != nil {
		log.Fatal(err)
	}
}
