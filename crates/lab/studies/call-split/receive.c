/* One receive function in three builds. SPLIT=0: one function. SPLIT=1: two halves, the second
 * called. SPLIT=2: two halves, the second inlined. All builds contain the same lines: first.h and
 * second.h.
 *
 * A kernel's receive path may continue with another frame and another device than it started with
 * (a removed tag, a hook that copies). So the second half receives pointers to these variables. */
#include <string.h>
#include "receive.h"

#define LEAVE(what)                                                            \
	do {                                                                   \
		verdict = what;                                                \
		goto done;                                                     \
	} while (0)

static inline uint16_t be16(const unsigned char *at)
{
	return (uint16_t)(at[0] << 8 | at[1]);
}

static inline uint32_t be32(const unsigned char *at)
{
	return (uint32_t)be16(at) << 16 | be16(at + 2);
}

#if SPLIT == 0
#define NAME receive_whole
#elif SPLIT == 1
#define NAME receive_call
#define HOW __attribute__((noinline))
#else
#define NAME receive_inline
#define HOW inline __attribute__((always_inline))
#endif

#if SPLIT
static HOW int receive_second(struct path *path, struct frame **at_frame,
			      struct device **at_device, const unsigned char **at_l3, uint32_t len)
{
	struct frame *frame = *at_frame;
	struct device *device = *at_device;
	const unsigned char *l3 = *at_l3;
	int verdict;

#include "second.h"
done:
	*at_l3 = l3;
	*at_frame = frame;
	*at_device = device;
	return verdict;
}
#endif

int NAME(struct path *path, struct frame *frame)
{
	int verdict;

#include "first.h"
#if SPLIT
	verdict = receive_second(path, &frame, &device, &l3, len);
#else
#include "second.h"
#endif
done:
	frame->verdict = (uint16_t)verdict;
	path->verdicts[verdict]++;
	return verdict;
}
