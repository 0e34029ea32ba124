#!/bin/sh
# "client" of rc.firewall for a network behind the router, variables written out.
/sbin/ipfw -q -f flush
/sbin/ipfw -q add pass all from 192.168.4.17 to 192.168.4.0:255.255.255.0
/sbin/ipfw -q add pass all from 192.168.4.0:255.255.255.0 to 192.168.4.17
# Allow TCP through if setup succeeded
/sbin/ipfw -q add pass tcp from any to any established
/sbin/ipfw -q add pass all from any to any frag
# Allow setup of incoming email
/sbin/ipfw -q add pass tcp from any to 192.168.4.17 25 setup
/sbin/ipfw -q add pass tcp from 192.168.4.17 to any setup
/sbin/ipfw -q add deny tcp from any to any setup
# DNS and NTP
/sbin/ipfw -q add pass udp from any 53 to 192.168.4.17
/sbin/ipfw -q add pass udp from 192.168.4.17 to any 53
/sbin/ipfw -q add pass udp from any ntp to 192.168.4.17
/sbin/ipfw -q add pass udp from 192.168.4.17 to any ntp
