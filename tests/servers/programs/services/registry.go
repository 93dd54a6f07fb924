package main

import (
	"crypto/sha256"
	"fmt"
	"net/http"
)

// Images are pushed and pulled, by the API that `docker push` uses.
func registryClients(address string, count int) {
	const kind = "application/vnd.oci.image.manifest.v1+json"
	var connections [clients]*http.Client
	for i := range connections {
		connections[i] = newClient()
	}
	sum := func(b []byte) string { return fmt.Sprintf("sha256:%x", sha256.Sum256(b)) }
	each(count, func(client, turn int) {
		c, base := connections[client], fmt.Sprintf("http://%s/v2/image-%d/", address, client)
		push := func(blob []byte) string {
			_, at := ask(c, "POST", base+"blobs/uploads/", 202, nil)
			middle := len(blob) / 2
			_, at = ask(c, "PATCH", at.Get("Location"), 202, blob[:middle], "Content-Type", "application/octet-stream")
			ask(c, "PUT", at.Get("Location")+"&digest="+sum(blob), 201, blob[middle:], "Content-Type", "application/octet-stream")
			got, _ := ask(c, "GET", base+"blobs/"+sum(blob), 200, nil)
			same("a blob", got, blob)
			return fmt.Sprintf(`"digest": "%s", "size": %d`, sum(blob), len(blob))
		}
		layer := push(content(client, turn))
		settings := push([]byte(fmt.Sprintf(`{"turn": %d}`, turn)))
		manifest := []byte(fmt.Sprintf(`{"schemaVersion": 2, "mediaType": "%s",
			"config": {"mediaType": "application/vnd.oci.image.config.v1+json", %s},
			"layers": [{"mediaType": "application/vnd.oci.image.layer.v1.tar", %s}]}`, kind, settings, layer))
		ask(c, "PUT", fmt.Sprintf("%smanifests/tag-%d", base, turn), 201, manifest, "Content-Type", kind)
		got, _ := ask(c, "GET", fmt.Sprintf("%smanifests/tag-%d", base, turn), 200, nil, "Accept", kind)
		same("a manifest", got, manifest)
		ask(c, "GET", base+"blobs/"+sum([]byte("none")), 404, nil)
	})
}
