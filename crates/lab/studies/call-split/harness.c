/* Measures the variants of receive.c: reads a line from stdin for each slice, writes a line of JSON
 * to stdout.
 *
 * harness NAME NS_PER_CLOCK FRAMES: the prefix of the rows' names (before "-whole-forward" and so
 * on), the nanoseconds per clock of the time-stamp counter, and a file of 64-byte frames. The first
 * half of the frames is to be forwarded, the second half to be dropped early. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "receive.h"

enum { FRAME = 64, MOST = 4096, PASSES = 48, VARIANTS = 3, TRAFFIC = 2 };

static const char *const variant_names[VARIANTS] = { "whole", "call", "inline" };
static const char *const traffic_names[TRAFFIC] = { "forward", "drop" };

static int (*const variants[VARIANTS])(struct path *, struct frame *) = {
	receive_whole, receive_call, receive_inline,
};

static unsigned char templates[2 * MOST][FRAME];
static unsigned char bytes[MOST][FRAME] __attribute__((aligned(64)));
static struct frame frames[MOST];
static struct path path;
static uint64_t clocks[VARIANTS][TRAFFIC][PASSES];

static inline uint64_t now(void)
{
#if defined(__x86_64__)
	uint32_t low, high;

	__asm__ volatile("lfence; rdtsc; lfence" : "=a"(low), "=d"(high)::"memory");
	return (uint64_t)high << 32 | low;
#elif defined(__aarch64__)
	uint64_t count;

	__asm__ volatile("isb; mrs %0, cntvct_el0" : "=r"(count)::"memory");
	return count;
#else
#error "no clock is known of this processor"
#endif
}

static void set_up(void)
{
	static const unsigned char mac[6] = { 2, 0, 0, 0, 0, 1 };

	memcpy(path.in.mac, mac, sizeof(mac));
	/* Port 7, network byte order. */
	memcpy(&path.drop_port, "\0\7", 2);
	for (unsigned at = 0; at < 64; at++) {
		unsigned char header[14] = { 2, 1, 0, 0, 0, (unsigned char)at, 2, 0, 0, 0, 0, 2, 8, 0 };

		memcpy(path.nexts[at].header, header, sizeof(header));
		path.nexts[at].device = (uint16_t)(1 + at % 4);
	}
	for (unsigned at = 0; at < 65536; at++)
		path.routes[at] = (uint8_t)((at * 0x9e37u >> 4) & 63);
}

static void restore(size_t count, unsigned traffic)
{
	memcpy(bytes, templates[traffic * count], count * FRAME);
	for (size_t at = 0; at < count; at++)
		frames[at] = (struct frame){ .data = bytes[at], .len = FRAME };
}

static uint64_t run(size_t count, unsigned variant)
{
	int (*receive)(struct path *, struct frame *) = variants[variant];
	uint64_t start = now();

	for (size_t at = 0; at < count; at++)
		receive(&path, &frames[at]);
	return now() - start;
}

/* FNV-1a over the frames and their verdicts. */
static uint64_t digest(size_t count)
{
	uint64_t hash = 0xcbf29ce484222325u;

	for (size_t at = 0; at < count; at++) {
		for (size_t byte = 0; byte < FRAME; byte++)
			hash = (hash ^ bytes[at][byte]) * 0x100000001b3u;
		hash = (hash ^ frames[at].verdict) * 0x100000001b3u;
		hash = (hash ^ frames[at].out) * 0x100000001b3u;
	}
	return hash;
}

static int less(const void *a, const void *b)
{
	uint64_t left = *(const uint64_t *)a, right = *(const uint64_t *)b;

	return (left > right) - (left < right);
}

/* Runs every variant in turn, forwards and backwards. */
static void measure(size_t count, uint64_t digests[TRAFFIC])
{
	for (unsigned pass = 0; pass < PASSES; pass++) {
		for (unsigned step = 0; step < VARIANTS * TRAFFIC; step++) {
			unsigned at = pass % 2 ? VARIANTS * TRAFFIC - 1 - step : step;
			unsigned variant = at % VARIANTS, traffic = at / VARIANTS;
			uint64_t found;

			restore(count, traffic);
			clocks[variant][traffic][pass] = run(count, variant);
			if (pass)
				continue;
			found = digest(count);
			if (step % VARIANTS && found != digests[traffic]) {
				fprintf(stderr, "%s does not do what the others do\n",
					variant_names[variant]);
				exit(1);
			}
			digests[traffic] = found;
		}
	}
}

static void report(const char *name, double ns, size_t count, const uint64_t digests[TRAFFIC])
{
	const char *comma = "";

	printf("{\"rows\":{");
	for (unsigned variant = 0; variant < VARIANTS; variant++) {
		for (unsigned traffic = 0; traffic < TRAFFIC; traffic++) {
			uint64_t *of = clocks[variant][traffic];

			qsort(of, PASSES, sizeof(*of), less);
			printf("%s\"%s-%s-%s\":%.5f", comma, name, variant_names[variant],
			       traffic_names[traffic], (double)of[PASSES / 2] * ns / (double)count);
			comma = ",";
		}
	}
	printf("},\"digests\":{\"%s\":%" PRIu64 ",\"%s\":%" PRIu64 "}}\n", traffic_names[0],
	       digests[0], traffic_names[1], digests[1]);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	uint64_t digests[TRAFFIC];
	char line[64];
	size_t count;
	FILE *file;

	if (argc != 4) {
		fprintf(stderr, "harness NAME NS_PER_CLOCK FRAMES\n");
		return 2;
	}
	file = fopen(argv[3], "rb");
	if (!file) {
		fprintf(stderr, "the frames cannot be read\n");
		return 1;
	}
	count = fread(templates, FRAME, 2 * MOST, file) / TRAFFIC;
	fclose(file);
	if (!count) {
		fprintf(stderr, "there are no frames\n");
		return 1;
	}
	set_up();
	while (fgets(line, sizeof(line), stdin)) {
		measure(count, digests);
		report(argv[1], atof(argv[2]), count, digests);
	}
	return 0;
}
