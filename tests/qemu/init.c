// The first process of the virtual machine. It loads the modules that it needs to read the host's
// files, and mounts these files as the root. Then it runs the command that the kernel's command
// line names, writes the command's status, and switches off.
//
// The initial file system is this program and /modules, the modules in the order in which they are loaded.

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROOT "/root"

static void end(void)
{
	sync();
	reboot(RB_POWER_OFF);
}

static void must(int result, const char *what)
{
	if (result >= 0)
		return;
	fprintf(stderr, "init: %s: %s\n", what, strerror(errno));
	end();
}

static void load_modules(void)
{
	FILE *list = fopen("/modules/list", "re");
	char name[128];

	must(list ? 0 : -1, "/modules/list");
	while (fscanf(list, "%127s", name) == 1) {
		int module = open(name, O_RDONLY | O_CLOEXEC);

		must(module, name);
		if (syscall(SYS_finit_module, module, "", 0) < 0 && errno != EEXIST)
			must(-1, name);
		close(module);
	}
	fclose(list);
}

static void put(const char *type, const char *at, const char *options)
{
	must(mount(type, at, type, 0, options), at);
}

static void make_root(void)
{
	const char *options = "trans=virtio,version=9p2000.L,msize=512000,cache=loose";

	mkdir(ROOT, 0755);
	must(mount("root", ROOT, "9p", MS_RDONLY, options), ROOT);
	must(mount("out", ROOT "/mnt", "9p", 0, "trans=virtio,version=9p2000.L,msize=512000"), "/mnt");
	put("proc", ROOT "/proc", "");
	put("sysfs", ROOT "/sys", "");
	put("devtmpfs", ROOT "/dev", "");
	put("tmpfs", ROOT "/tmp", "");
	put("tmpfs", ROOT "/run", "");
	// Kernel threads share this process's root, so that they find modprobe.
	must(chroot(ROOT), "chroot");
	must(chdir("/"), "/");
}

int main(void)
{
	char *const shell[] = { "/bin/sh", "/mnt/command", NULL };
	char *const environment[] = {
		"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/tmp", "TERM=dumb", NULL,
	};
	int status = 0, file;
	char text[16];
	pid_t child;

	load_modules();
	make_root();
	child = fork();
	must(child, "fork");
	if (child == 0) {
		setsid();
		execve(shell[0], shell, environment);
		_exit(127);
	}
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	file = open("/mnt/status", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	must(file, "/mnt/status");
	snprintf(text, sizeof(text), "%d\n", WIFEXITED(status) ? WEXITSTATUS(status) : 255);
	must(write(file, text, strlen(text)), "/mnt/status");
	close(file);
	end();
	return 0;
}
