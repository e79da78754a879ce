/* A stand-in for a network file system: sharefs DIRECTORY_FD MODE_FD FUSE-ARGUMENTS

   Serves the directory that one inherited descriptor names, so that several nodes can share it.
   Before each answer it reads a word from the other: `ok`; `hang`: no answer until the word
   changes; `stale` and `eio`: that error; `slow MS`: the answer comes late. */

#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define POLL_US 10000

static int directory, mode;

static int gate(void)
{
    for (;;) {
        char word[33] = "";
        if (pread(mode, word, sizeof word - 1, 0) < 0)
            return -EIO;
        if (!strncmp(word, "stale", 5))
            return -ESTALE;
        if (!strncmp(word, "eio", 3))
            return -EIO;
        if (!strncmp(word, "slow", 4))
            usleep(atoi(word + 5) * 1000);
        if (strncmp(word, "hang", 4))
            return 0;
        usleep(POLL_US);
    }
}

static const char *below(const char *path)
{
    return path[1] ? path + 1 : ".";
}

/* Each operation waits at the gate, then does one system call on the shared directory. */
#define PASS(call)                          \
    do {                                    \
        int shut = gate();                  \
        if (shut)                           \
            return shut;                    \
        return (call) < 0 ? -errno : 0;     \
    } while (0)

static int get_attributes(const char *path, struct stat *out, struct fuse_file_info *file)
{
    (void)file;
    PASS(fstatat(directory, below(path), out, AT_SYMLINK_NOFOLLOW));
}

static int read_directory(const char *path, void *buffer, fuse_fill_dir_t fill, off_t offset,
                          struct fuse_file_info *file, enum fuse_readdir_flags flags)
{
    (void)offset, (void)file, (void)flags;
    int shut = gate();
    if (shut)
        return shut;
    int fd = openat(directory, below(path), O_RDONLY | O_DIRECTORY);
    DIR *entries = fd < 0 ? NULL : fdopendir(fd);
    if (!entries)
        return -errno;
    for (struct dirent *entry; (entry = readdir(entries));)
        fill(buffer, entry->d_name, NULL, 0, 0);
    closedir(entries);
    return 0;
}

static int open_file(const char *path, struct fuse_file_info *file)
{
    int fd, shut = gate();
    if (shut)
        return shut;
    fd = openat(directory, below(path), file->flags & ~O_NOFOLLOW);
    file->fh = fd;
    return fd < 0 ? -errno : 0;
}

static int create_file(const char *path, mode_t bits, struct fuse_file_info *file)
{
    int fd, shut = gate();
    if (shut)
        return shut;
    fd = openat(directory, below(path), file->flags | O_CREAT, bits);
    file->fh = fd;
    if (fd < 0)
        return -errno;
    return fchown(fd, fuse_get_context()->uid, fuse_get_context()->gid) ? -errno : 0;
}

static int read_file(const char *path, char *out, size_t size, off_t offset,
                     struct fuse_file_info *file)
{
    (void)path;
    int count, shut = gate();
    if (shut)
        return shut;
    count = pread(file->fh, out, size, offset);
    return count < 0 ? -errno : count;
}

static int write_file(const char *path, const char *data, size_t size, off_t offset,
                      struct fuse_file_info *file)
{
    (void)path;
    int count, shut = gate();
    if (shut)
        return shut;
    count = pwrite(file->fh, data, size, offset);
    return count < 0 ? -errno : count;
}

static int sync_file(const char *path, int data, struct fuse_file_info *file)
{
    (void)path, (void)data;
    PASS(fsync(file->fh));
}

static int release_file(const char *path, struct fuse_file_info *file)
{
    (void)path;
    return close(file->fh);
}

static int truncate_file(const char *path, off_t size, struct fuse_file_info *file)
{
    int fd = file ? (int)file->fh : openat(directory, below(path), O_WRONLY);
    int code = fd < 0 || ftruncate(fd, size) ? -errno : 0;
    if (!file && fd >= 0)
        close(fd);
    return code;
}

static int remove_file(const char *path) { PASS(unlinkat(directory, below(path), 0)); }
static int remove_directory(const char *path)
{
    PASS(unlinkat(directory, below(path), AT_REMOVEDIR));
}

static int make_directory(const char *path, mode_t bits)
{
    int shut = gate();
    if (shut)
        return shut;
    if (mkdirat(directory, below(path), bits))
        return -errno;
    struct fuse_context *by = fuse_get_context();
    return fchownat(directory, below(path), by->uid, by->gid, 0) ? -errno : 0;
}

static int rename_file(const char *from, const char *to, unsigned flags)
{
    PASS(renameat2(directory, below(from), directory, below(to), flags));
}

static int change_mode(const char *path, mode_t bits, struct fuse_file_info *file)
{
    (void)file;
    PASS(fchmodat(directory, below(path), bits, 0));
}

static int set_times(const char *path, const struct timespec times[2], struct fuse_file_info *file)
{
    (void)file;
    PASS(utimensat(directory, below(path), times, AT_SYMLINK_NOFOLLOW));
}

static int get_size(const char *path, struct statvfs *out)
{
    (void)path;
    PASS(fstatvfs(directory, out));
}

static const struct fuse_operations OPERATIONS = {
    .getattr = get_attributes,
    .readdir = read_directory,
    .open = open_file,
    .create = create_file,
    .read = read_file,
    .write = write_file,
    .fsync = sync_file,
    .release = release_file,
    .truncate = truncate_file,
    .unlink = remove_file,
    .rmdir = remove_directory,
    .mkdir = make_directory,
    .rename = rename_file,
    .chmod = change_mode,
    .utimens = set_times,
    .statfs = get_size,
};

int main(int count, char **arguments)
{
    if (count < 4) {
        fprintf(stderr, "usage: sharefs DIRECTORY_FD MODE_FD FUSE-ARGUMENTS\n");
        return 2;
    }
    directory = atoi(arguments[1]);
    mode = atoi(arguments[2]);
    umask(0);
    arguments[2] = arguments[0];
    return fuse_main(count - 2, arguments + 2, &OPERATIONS, NULL);
}
