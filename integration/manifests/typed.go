package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	apps "k8s.io/api/apps/v1"
	core "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	documents "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// kinds that Kubernetes itself has no type for: custom resources, whose YAML is all that is checked
var custom = []string{"NetworkAttachmentDefinition"}

// strict refuses unknown and repeated fields, as an API server does with fieldValidation=Strict.
var strict = serializer.NewCodecFactory(scheme.Scheme, serializer.EnableStrict).UniversalDeserializer()

// typed says what of the files that are made, and of the examples, Kubernetes' types do not have.
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

// same says where the chart and the overlay of one name come to different objects.
func same(made map[string]string) error {
	var wrong []error
	for _, path := range sorted(made) {
		if filepath.Dir(path) != applied {
			continue
		}
		beside := filepath.Join(rendered, filepath.Base(path))
		chart, there := made[beside]
		if !there {
			wrong = append(wrong, fmt.Errorf("%s/%s is missing: the chart's values for %s", values, filepath.Base(path), path))
			continue
		}
		one, err := normal(made[path])
		other, errOther := normal(chart)
		if err = errors.Join(err, errOther); err != nil {
			wrong = append(wrong, err)
		} else if !equality.Semantic.DeepEqual(one, other) {
			wrong = append(wrong, fmt.Errorf("%s and %s are different objects", path, beside))
		}
	}
	return errors.Join(wrong...)
}

// normal is the objects by kind, with what has no order sorted, and JSON without its spaces.
func normal(text string) (map[string]runtime.Object, error) {
	objects, err := decoded(text)
	if err != nil {
		return nil, err
	}
	kinds := map[string]runtime.Object{}
	for _, object := range objects {
		switch object := object.(type) {
		case *core.ConfigMap:
			for key, value := range object.Data {
				var parsed any
				if err := json.Unmarshal([]byte(value), &parsed); err != nil {
					return nil, fmt.Errorf("%s of the ConfigMap: %w", key, err)
				}
				compact, err := json.Marshal(parsed)
				if err != nil {
					return nil, err
				}
				object.Data[key] = string(compact)
			}
			kinds["ConfigMap"] = object
		case *apps.DaemonSet:
			pod := &object.Spec.Template.Spec
			slices.SortFunc(pod.Volumes, func(a, b core.Volume) int { return strings.Compare(a.Name, b.Name) })
			for _, container := range append(pod.InitContainers, pod.Containers...) {
				slices.SortFunc(container.VolumeMounts, func(a, b core.VolumeMount) int {
					return strings.Compare(a.MountPath, b.MountPath)
				})
				slices.Sort(container.SecurityContext.Capabilities.Add)
			}
			kinds["DaemonSet"] = object
		default:
			return nil, fmt.Errorf("%T: compared with nothing", object)
		}
	}
	if len(kinds) != len(objects) {
		return nil, errors.New("two objects of one kind")
	}
	return kinds, nil
}
