package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	documents "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// custom lists the kinds of custom resources for which this program has no types: it checks only their YAML. The test
// cni/rdma-device-plugin/tests/manifests/platforms.rs checks the fields of SecurityContextConstraints.
var custom = []string{"NetworkAttachmentDefinition", "SecurityContextConstraints"}

// known has the types of Kubernetes and of Prometheus' operator.
var known = func() *runtime.Scheme {
	if err := monitoring.AddToScheme(scheme.Scheme); err != nil {
		panic(err)
	}
	return scheme.Scheme
}()

// strict refuses unknown and repeated fields, as an API server does with fieldValidation=Strict.
var strict = serializer.NewCodecFactory(known, serializer.EnableStrict).UniversalDeserializer()

// typed reports objects in the rendered files and in the examples that do not have the fields of Kubernetes' types.
func typed(root string, made map[string]string) error {
	var wrong []error
	check := func(path, text string) {
		objects, err := decoded(text)
		if err == nil && len(objects) == 0 {
			err = errors.New("no object in it")
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", path, err))
		}
	}
	for _, path := range sorted(made) {
		check(path, made[path])
	}
	err := filepath.WalkDir(filepath.Join(root, examples), func(path string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".yaml") {
			return err
		}
		text, err := os.ReadFile(path)
		check(path, string(text))
		return err
	})
	return errors.Join(append(wrong, err)...)
}

func decoded(text string) ([]runtime.Object, error) {
	var objects []runtime.Object
	reader := documents.NewYAMLReader(bufio.NewReader(strings.NewReader(text)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, err
		}
		var about struct {
			Kind string `json:"kind"`
		}
		if err := yaml.Unmarshal(document, &about); err != nil {
			return nil, err
		}
		if about.Kind == "" && onlyComments(document) {
			continue
		}
		if slices.Contains(custom, about.Kind) {
			objects = append(objects, &runtime.Unknown{Raw: document})
			continue
		}
		object, _, err := strict.Decode(document, nil, nil)
		if err != nil {
			return nil, err
		}
		objects = append(objects, object)
	}
}

func onlyComments(document []byte) bool {
	for line := range bytes.Lines(document) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && string(line) != "---" {
			return false
		}
	}
	return true
}
