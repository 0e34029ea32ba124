	/* First half, about the link: counters, Ethernet, taps. */
	struct device *device = &path->in;
	const unsigned char *l3;
	uint32_t len = frame->len;

	device->packets++;
	device->bytes += len;
	if (len < 42)
		LEAVE(BAD);
	if (memcmp(frame->data, device->mac, 6))
		LEAVE(OTHER_HOST);
	if (path->taps)
		path->tapped++;
	l3 = frame->data + 14;
