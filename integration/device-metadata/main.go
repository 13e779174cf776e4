// SPDX-License-Identifier: Apache-2.0

// The program reads the metadata of a claim's devices from standard input, as Kubernetes' own package for programs in
// containers does, and refuses unknown fields. It prints, as JSON, the path of the file in a container, and the objects
// of the file.
//
//	reader DRIVER CLAIM REQUEST            a claim that pods name
//	reader DRIVER CLAIM REQUEST template   a claim of a template; CLAIM is its name in the pod
package main

import (
	"bytes"
	"encoding/json"
	"io"
	"log"
	"os"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	"k8s.io/dynamic-resource-allocation/api/metadata/install"
	"k8s.io/dynamic-resource-allocation/devicemetadata"
)

func main() {
	path := metadata.ResourceClaimFilePath
	if len(os.Args) == 5 {
		path = metadata.ResourceClaimTemplateFilePath
	}
	content, err := io.ReadAll(os.Stdin)
	if err != nil {
		log.Fatal(err)
	}
	var first metadata.DeviceMetadata
	if err := devicemetadata.DecodeMetadataFromStream(json.NewDecoder(bytes.NewReader(content)), &first); err != nil {
		log.Fatal(err)
	}
	strict := serializer.NewCodecFactory(install.NewScheme(), serializer.EnableStrict).UniversalDeserializer()
	stream := json.NewDecoder(bytes.NewReader(content))
	objects := []runtime.Object{}
	for stream.More() {
		var raw json.RawMessage
		if err := stream.Decode(&raw); err != nil {
			log.Fatal(err)
		}
		object, _, err := strict.Decode(raw, nil, nil)
		if err != nil {
			log.Fatal(err)
		}
		objects = append(objects, object)
	}
	answer := map[string]any{"path": path(os.Args[1], os.Args[2], os.Args[3]), "objects": objects}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		log.Fatal(err)
	}
}
