	/* Second half, about the packet: early drop, IPv4, route, rewriting. */
	const unsigned char *ip = l3;
	const struct next *next;
	uint32_t sum = 0;
	uint16_t port;

	if (be16(ip - 2) != 0x0800)
		LEAVE(BAD);
	if (path->drop_port && ip[9] == 17) {
		memcpy(&port, ip + 22, 2);
		if (port == path->drop_port)
			LEAVE(DROPPED);
	}
	if (ip[0] != 0x45 || be16(ip + 2) > len - 14 || ip[8] < 2)
		LEAVE(BAD);
	for (int at = 0; at < 20; at += 2)
		sum += be16(ip + at);
	sum = (sum & 0xffff) + (sum >> 16);
	if ((sum & 0xffff) + (sum >> 16) != 0xffff)
		LEAVE(BAD);
	next = &path->nexts[path->routes[be32(ip + 16) >> 16] & 63];
	if (!next->device)
		LEAVE(NO_ROUTE);
	sum = be16(frame->data + 24) + 0x100u;
	sum = (sum & 0xffff) + (sum >> 16);
	frame->data[24] = (unsigned char)(sum >> 8);
	frame->data[25] = (unsigned char)sum;
	frame->data[22]--;
	memcpy(frame->data, next->header, 14);
	frame->out = next->device;
	device->forwarded++;
	verdict = SENT;
