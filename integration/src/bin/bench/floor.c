// SPDX-License-Identifier: Apache-2.0
/*
 * floor - makes only the kernel requests of an ADD of one rail in share mode: without record, lease, probe and result.
 * Runs in the host's namespace. The environment has the path of the pod's namespace (POD), the netdev on the host
 * (PARENT), and the child's name (NAME) and IPv6 address (ADDRESS).
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if_link.h>
#include <linux/neighbour.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <net/if.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

/* Number of observations before ADD makes the child. ADD also observes after the child's set-up and the address. */
#define LOOKS_BEFORE 2

static char answer[32 << 10];

struct request {
	struct nlmsghdr head;
	char body[512];
};

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

static void need(int done, const char *what)
{
	if (done < 0)
		fail(what);
}

static void *header(struct request *request, int type, int flags, size_t size)
{
	memset(request, 0, sizeof(*request));
	request->head.nlmsg_len = NLMSG_LENGTH(size);
	request->head.nlmsg_type = type;
	request->head.nlmsg_flags = NLM_F_REQUEST | flags;
	return NLMSG_DATA(&request->head);
}

static struct rtattr *add(struct request *request, int type, const void *data, size_t length)
{
	struct rtattr *attribute = (void *)((char *)request + NLMSG_ALIGN(request->head.nlmsg_len));

	attribute->rta_type = type;
	attribute->rta_len = RTA_LENGTH(length);
	if (length)
		memcpy(RTA_DATA(attribute), data, length);
	request->head.nlmsg_len = NLMSG_ALIGN(request->head.nlmsg_len) + RTA_ALIGN(attribute->rta_len);
	return attribute;
}

static void end(struct request *request, struct rtattr *nest)
{
	nest->rta_len = (char *)request + request->head.nlmsg_len - (char *)nest;
}

/* Sends the request, and reads answers until the last one. Returns the index of the reported netdev, or 0. */
static int ask(int socket, struct request *request)
{
	int index = 0;

	need(send(socket, request, request->head.nlmsg_len, 0), "send");
	for (;;) {
		int length = recv(socket, answer, sizeof(answer), 0);
		struct nlmsghdr *part = (void *)answer;

		need(length, "recv");
		for (; NLMSG_OK(part, length); part = NLMSG_NEXT(part, length)) {
			if (part->nlmsg_type == NLMSG_DONE)
				return index;
			if (part->nlmsg_type == NLMSG_ERROR) {
				struct nlmsgerr *error = NLMSG_DATA(part);

				if (error->error) {
					fprintf(stderr, "floor: %s\n", strerror(-error->error));
					exit(1);
				}
				return index;
			}
			if (part->nlmsg_type == RTM_NEWLINK)
				index = ((struct ifinfomsg *)NLMSG_DATA(part))->ifi_index;
		}
	}
}

static void dump(int socket, int type, size_t size)
{
	struct request request;

	header(&request, type, NLM_F_DUMP, size);
	ask(socket, &request);
}

/* Requests netdevs without their counters. */
static void without_counters(struct request *request)
{
	unsigned int mask = RTEXT_FILTER_SKIP_STATS;

	add(request, IFLA_EXT_MASK, &mask, sizeof(mask));
}

static void dump_links(int socket)
{
	struct request request;

	header(&request, RTM_GETLINK, NLM_F_DUMP, sizeof(struct ifinfomsg));
	without_counters(&request);
	ask(socket, &request);
}

/* Requests unicast routes: no local and no multicast routes. */
static void dump_routes(int socket, int family)
{
	struct request request;
	struct rtmsg *route = header(&request, RTM_GETROUTE, NLM_F_DUMP, sizeof(*route));

	route->rtm_family = family;
	route->rtm_type = RTN_UNICAST;
	ask(socket, &request);
}

static void look(int socket)
{
	dump_links(socket);
	dump(socket, RTM_GETADDR, sizeof(struct ifaddrmsg));
	dump_routes(socket, AF_INET);
	dump_routes(socket, AF_INET6);
	dump(socket, RTM_GETRULE, sizeof(struct rtmsg));
}

static int find(int socket, const char *name)
{
	struct request request;

	header(&request, RTM_GETLINK, NLM_F_ACK, sizeof(struct ifinfomsg));
	add(&request, IFLA_IFNAME, name, strlen(name) + 1);
	without_counters(&request);
	return ask(socket, &request);
}

static int open_socket(void)
{
	int on = 1, socket_ = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_ROUTE);

	need(socket_, "socket");
	setsockopt(socket_, SOL_NETLINK, NETLINK_GET_STRICT_CHK, &on, sizeof(on));
	return socket_;
}

static void set(const char *name, const char *key, const char *value)
{
	char path[128];
	int file;

	snprintf(path, sizeof(path), "/proc/sys/net/ipv6/conf/%s/%s", name, key);
	file = open(path, O_WRONLY | O_CLOEXEC);
	need(file, path);
	need(write(file, value, strlen(value)), path);
	close(file);
}

static void make_child(int host, int pod, const char *parent, const char *name)
{
	unsigned int lower = find(host, parent), mode = MACVLAN_MODE_BRIDGE;
	struct request request;
	struct rtattr *info, *data;

	header(&request, RTM_NEWLINK, NLM_F_ACK | NLM_F_CREATE | NLM_F_EXCL, sizeof(struct ifinfomsg));
	add(&request, IFLA_IFNAME, name, strlen(name) + 1);
	add(&request, IFLA_LINK, &lower, sizeof(lower));
	add(&request, IFLA_NET_NS_FD, &pod, sizeof(pod));
	info = add(&request, IFLA_LINKINFO, NULL, 0);
	add(&request, IFLA_INFO_KIND, "macvlan", sizeof("macvlan"));
	data = add(&request, IFLA_INFO_DATA, NULL, 0);
	add(&request, IFLA_MACVLAN_MODE, &mode, sizeof(mode));
	end(&request, data);
	end(&request, info);
	ask(host, &request);
}

static const char *value(const char *name)
{
	const char *found = getenv(name);

	if (!found) {
		fprintf(stderr, "floor: %s is not set\n", name);
		exit(2);
	}
	return found;
}

int main(void)
{
	const char *netns = value("POD"), *parent = value("PARENT"), *name = value("NAME");
	int host, inside, pod, at, index;
	struct request request;
	struct ifinfomsg *link;
	struct ifaddrmsg *address;
	struct in6_addr ip;

	if (inet_pton(AF_INET6, value("ADDRESS"), &ip) != 1) {
		fprintf(stderr, "floor: ADDRESS is no IPv6 address\n");
		return 2;
	}
	host = open_socket();
	pod = open(netns, O_RDONLY | O_CLOEXEC);
	need(pod, netns);
	/* this process stays in the pod's namespace: requests to the host use the socket `host` */
	need(setns(pod, CLONE_NEWNET), "setns");
	inside = open_socket();
	for (at = 0; at < LOOKS_BEFORE; at++) {
		look(host);
		look(inside);
	}
	dump(host, RTM_GETNEIGH, sizeof(struct ndmsg));
	make_child(host, pod, parent, name);
	set(name, "accept_ra", "0\n");
	set(name, "accept_dad", "0\n");
	index = find(inside, name);
	link = header(&request, RTM_NEWLINK, NLM_F_ACK, sizeof(*link));
	link->ifi_index = index;
	link->ifi_flags = link->ifi_change = IFF_UP;
	ask(inside, &request);
	look(host);
	look(inside);
	dump(host, RTM_GETADDR, sizeof(*address));
	index = find(inside, name);
	address = header(&request, RTM_NEWADDR, NLM_F_ACK | NLM_F_CREATE | NLM_F_REPLACE, sizeof(*address));
	address->ifa_family = AF_INET6;
	address->ifa_prefixlen = 64;
	address->ifa_index = index;
	add(&request, IFA_ADDRESS, &ip, sizeof(ip));
	ask(inside, &request);
	look(host);
	look(inside);
	find(inside, name);
	find(inside, name);
	return 0;
}
