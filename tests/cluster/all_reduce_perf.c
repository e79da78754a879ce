// Stands in for all_reduce_perf of nccl-tests where there is no GPU: it prints what that one prints,
// by the printf of its sources, and computes nothing. Its processes do meet as those of the real one
// do, through MPI; built without MPI_SUPPORT and PMI2_SUPPORT each is alone.
//
// /etc/testbed-nccl-tests of a node, lines KEY=VALUE, tells what to play:
//   version=2.19.6   also 2.9.0 and 2.14.0
//   gbps=400         what large sizes reach, in Gb/s
//   wrong=0          values in the last row
//   nan=0            1: the last row has times that are no numbers
//   hang=            init or row: there it sleeps
//   die=0            1: it is killed in the first row
//   fail=            words of a call of NCCL that fails in the first row
// and what NCCL would say of itself there, where NCCL_DEBUG is INFO and NCCL_DEBUG_FILE names none:
//   nccl=2.27.6
//   bootstrap=       its interface and address, as eth0:10.0.0.1
//   hcas=            its RDMA ports, as [0]mlx5_0:1/IB
//   sockets=         its interfaces, as [0]eth0:10.0.0.1<0>
//   network=Socket
//   via=NET/Socket/0 the way of a channel to another node
//   warning=
//
// Open MPI and PMI-2 (with which MPICH meets under srun) are linked without their headers: those of
// Open MPI bring a Fortran compiler along.
#define _GNU_SOURCE
#include <getopt.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int rank, ranks = 1;

#if MPI_SUPPORT
extern struct ompi_communicator_t { int opaque; } ompi_mpi_comm_world;
extern struct ompi_datatype_t { int opaque; } ompi_mpi_byte;
int MPI_Init(int *, char ***);
int MPI_Comm_rank(void *, int *);
int MPI_Comm_size(void *, int *);
int MPI_Allgather(const void *, int, void *, void *, int, void *, void *);
int MPI_Barrier(void *);
int MPI_Finalize(void);
#define WORLD ((void *)&ompi_mpi_comm_world)

static void meet(int *argc, char ***argv) {
  MPI_Init(argc, argv);
  MPI_Comm_rank(WORLD, &rank);
  MPI_Comm_size(WORLD, &ranks);
}
static void gather(const char *mine, char *all, int length) {
  MPI_Allgather(mine, length, &ompi_mpi_byte, all, length, &ompi_mpi_byte, WORLD);
}
static void barrier(void) { MPI_Barrier(WORLD); }
static void part(void) { MPI_Finalize(); }
#elif PMI2_SUPPORT
int PMI2_Init(int *, int *, int *, int *);
int PMI2_Job_GetId(char *, int);
int PMI2_KVS_Put(const char *, const char *);
int PMI2_KVS_Fence(void);
int PMI2_KVS_Get(const char *, int, const char *, char *, int, int *);
int PMI2_Finalize(void);
const char *const calls = "MPI_Init";  // what is looked for in a build with MPI

static void meet(int *argc, char ***argv) {
  int spawned, number;
  if (PMI2_Init(&spawned, &ranks, &rank, &number)) rank = 0, ranks = 1;  // nobody started it
}
static void gather(const char *mine, char *all, int length) {
  static int round;
  char job[64], key[64];
  int got;
  if (ranks == 1) {
    memcpy(all, mine, length);
    return;
  }
  PMI2_Job_GetId(job, sizeof job);
  snprintf(key, sizeof key, "%d-%d", ++round, rank);
  PMI2_KVS_Put(key, mine);
  PMI2_KVS_Fence();
  for (int other = 0; other < ranks; other++) {
    snprintf(key, sizeof key, "%d-%d", round, other);
    PMI2_KVS_Get(job, -1, key, all + (size_t)other * length, length, &got);
  }
}
static void barrier(void) {
  if (ranks > 1) PMI2_KVS_Fence();
}
static void part(void) { PMI2_Finalize(); }
#else
static void meet(int *argc, char ***argv) {}
static void gather(const char *mine, char *all, int length) { memcpy(all, mine, length); }
static void barrier(void) {}
static void part(void) {}
#endif

#define LINE 2048
static char play[4096];

static const char *played(const char *key, const char *otherwise) {
  static char value[8][256];
  static int next;
  char name[64];
  snprintf(name, sizeof name, "\n%s=", key);
  const char *at = strstr(play, name);
  if (!at) return otherwise;
  char *out = value[next++ % 8];
  sscanf(at + strlen(name), "%255[^\n]", out);
  return out;
}

static void read_play(void) {
  play[0] = '\n';
  FILE *file = fopen("/etc/testbed-nccl-tests", "r");
  if (!file) return;
  size_t length = fread(play + 1, 1, sizeof play - 2, file);
  play[1 + length] = 0;
  fclose(file);
}

static void say(const char *host, const char *level, const char *format, ...) {
  char line[512];
  va_list values;
  va_start(values, format);
  vsnprintf(line, sizeof line, format, values);
  va_end(values);
  printf("%s:%d:%d [0] %s %s\n", host, getpid(), getpid() + 1, level, line);
}

// What NCCL 2.27 says while it connects, by the INFO and WARN of its sources.
static void say_all(const char *host) {
  const char *level = getenv("NCCL_DEBUG"), *file = getenv("NCCL_DEBUG_FILE"), *info = "NCCL INFO";
  if (!level || strcmp(level, "INFO") || (file && *file)) return;
  say(host, info, "NCCL version %s+cuda12.9", played("nccl", "2.27.6"));
  if (*played("bootstrap", "")) say(host, info, "Bootstrap: Using %s<0>", played("bootstrap", ""));
  if (*played("hcas", "")) say(host, info, "NET/IB : Using %s [RO]; OOB eth0:10.0.0.1<0>",
                               played("hcas", ""));
  if (*played("sockets", "")) say(host, info, "NET/Socket : Using %s", played("sockets", ""));
  say(host, info, "Using network %s", played("network", "Socket"));
  if (*played("warning", "")) say(host, "transport/net.cc:7 NCCL WARN", "%s", played("warning", ""));
  say(host, info, "Channel 00/0 : %d[0] -> %d[0] [send] via %s", rank, (rank + 1) % ranks,
      played("via", "NET/Socket/0"));
}

static void hang(void) {
  for (;;) pause();
}

static size_t size_of(const char *text) {
  char unit = 0;
  double value = 0;
  sscanf(text, "%lf%c", &value, &unit);
  return value * (unit == 'K' ? 1 << 10 : unit == 'M' ? 1 << 20 : unit == 'G' ? 1 << 30 : 1);
}

int main(int argc, char **argv, char **envp) {
  static struct option longs[] = {{"help", no_argument, 0, 'h'}, {0}};
  size_t least = 32 << 20, most = 32 << 20, factor = 1;
  int gpus = 1, iters = 20, warmup = 5, each = 0, check = 1, option;
  const char *path = NULL;
  read_play();
  const char *version = played("version", "2.19.6");
  int old = !strcmp(version, "2.9.0"), new = !strcmp(version, "2.19.6");
  setlinebuf(stdout);
  while ((option = getopt_long(argc, argv, "b:e:f:g:n:w:c:I:J:h", longs, NULL)) != -1) {
    if (option == 'b') least = size_of(optarg);
    else if (option == 'e') most = size_of(optarg);
    else if (option == 'f') factor = atol(optarg);
    else if (option == 'g') gpus = atoi(optarg);
    else if (option == 'n') iters = atoi(optarg);
    else if (option == 'w') warmup = atoi(optarg);
    else if (option == 'c') check = atoi(optarg);
    else if (option == 'I') each = atoi(optarg);
    else if (option == 'J') path = optarg;
    else {
      printf("USAGE: all_reduce_perf \n\t[-t,--nthreads <num threads>] \n\t[-b,--minbytes <min size"
             " in bytes>] \n\t");
      if (new)
        printf("[-J,--output_file <file> write output to filepath, if accessible.] \n\t"
               "[-I,--per_iter_timing <0/1> per-iteration CUDA event timing] \n\t");
      printf("[-h,--help]\n");
      return 0;
    }
  }
  int local = 0, length = 0;
  char host[256] = "", line[LINE] = "";
  gethostname(host, sizeof host);
  meet(&argc, &argv);
  char *hosts = calloc(ranks, sizeof host), *lines = calloc(ranks, LINE);
  gather(host, hosts, sizeof host);
  for (int other = 0; other < rank; other++)
    local += !strcmp(hosts + other * sizeof host, host);
  FILE *json = rank == 0 && path ? fopen(path, "wx") : NULL;
  if (json) {
    printf("# Writing JSON output to %s\n", path);
    fprintf(json, "{\"version\":3,\"env\":[");
    for (char **one = envp; *one; one++) fprintf(json, "%s\"%.*s\"", one == envp ? "" : ",",
                                                 (int)strcspn(*one, "\"\\\n\t"), *one);
    fprintf(json, "],\"nccl_version\":22706");
  }
  if (rank == 0) {
    if (new) printf("# nccl-tests version 2.19.6 nccl-headers=22706 nccl-library=22706\n"
                    "# Collective test starting: all_reduce_perf\n");
    printf("# nThread 1 nGpus %d minBytes %zu maxBytes %zu step: %zu(factor) warmup iters: %d "
           "iters: %d %svalidation: %d %s\n", gpus, least, most, factor, warmup, iters,
           old ? "" : "agg iters: 1 ", check, old ? "" : new ? "graph: 0 unalign: 0" : "graph: 0");
    printf("#\n# Using devices\n");
  }
  for (int gpu = 0; gpu < gpus; gpu++) {
    length += snprintf(line + length, LINE - length,
                       old ? "#   Rank %2d Pid %6d on %10s device %2d [0x%02x] %s\n"
                           : new ? "#  Rank %2d Group  0 Pid %6d on %10s device %2d [0000:%02x:00] %s\n"
                                 : "#  Rank %2d Group  0 Pid %6d on %10s device %2d [0x%02x] %s\n",
                       rank * gpus + gpu, getpid(), host, local * gpus + gpu,
                       0x10 * (local * gpus + gpu + 1), "NVIDIA H100 80GB HBM3");
  }
  gather(line, lines, LINE);
  for (int other = 0; rank == 0 && other < ranks; other++) printf("%s", lines + other * LINE);
  say_all(host);
  if (!strcmp(played("hang", ""), "init")) hang();
  barrier();
  const char *wrong_name = old ? "error" : "#wrong";
  if (rank == 0) {
    const char *columns = each ? "i_min i_max i_p99 i_cv%" : "";
    printf("#\n#   out-of-place                       in-place          \n");
    printf("#       size         count      type   redop %s    time   algbw   busbw  %s %s    time "
           "  algbw   busbw  %s %s\n", old ? "" : "   root", wrong_name, columns, wrong_name, columns);
    printf("#        (B)    (elements)     (us)  (GB/s)  (GB/s)    (us)  (GB/s)  (GB/s)\n");
  }
  if (json) fprintf(json, ",\"results\":[");
  double total = 0, n = (double)ranks * gpus;
  int rows = 0, outside = 0;
  for (size_t size = least; size <= most; size *= factor > 1 ? factor : 2, rows++) {
    int last = size * (factor > 1 ? factor : 2) > most;
    int wrong = last ? atoi(played("wrong", "0")) : 0;
    if (rank == 0)
      printf(old ? "%12zu  %12zu  %6s  %6s" : "%12zu  %12zu  %8s  %6s      -1", size, size / 4,
             "float", "sum");
    if (!strcmp(played("hang", ""), "row")) hang();
    if (atoi(played("die", "0"))) raise(SIGKILL);
    if (*played("fail", "")) {
      printf("%s: Test NCCL failure common.cu:958 '%s'\n .. %s pid %d: Test failure common.cu:891\n",
             host, played("fail", ""), host, getpid());
      exit(3);
    }
    barrier();
    double busbw = atof(played("gbps", "400")) / 8, factor_of_bus = n > 1 ? 2 * (n - 1) / n : 1;
    double us = 25 + size / (busbw / factor_of_bus) / 1e3;
    double algbw = size / us / 1e3;
    total += algbw * factor_of_bus;
    outside += wrong > 0;
    for (int place = 0; rank == 0 && place < 2; place++) {
      if (last && atoi(played("nan", "0"))) printf("     -nan     nan     nan");
      else printf("  %7.2f  %6.2f  %6.2f", us, algbw, algbw * factor_of_bus);
      printf(check ? old ? "  %5.0le" : "  %6g" : "     N/A", (double)wrong);
      if (each) printf("  %7.2f  %7.2f  %7.2f  %7.2f", us, us, us, 1.0);
    }
    if (rank == 0) printf("\n");
    if (json) {
      fprintf(json, "%s{\"size\":%zu,\"count\":%zu,\"out_of_place\":{\"time\":%lf,\"alg_bw\":%lf,"
              "\"bus_bw\":%lf,\"nwrong\":%lf}", rows ? "," : "", size, size / 4, us, algbw,
              algbw * factor_of_bus, (double)wrong);
      if (each && ranks > 1) {
        fprintf(json, ",\"out_of_place_per_iter\":{\"per_process_max_times_us\":[");
        for (int other = 0; other < ranks; other++)
          fprintf(json, "%s[%lf,%lf]", other ? "," : "", us - other, us - other);
        fprintf(json, "]}");
      }
      fprintf(json, "}");
    }
  }
  if (json) {
    fprintf(json, "],\"out_of_bounds\":{\"count\":%d,\"okay\":\"true\"}}", outside);
    fclose(json);
  }
  if (rank == 0)
    printf("# Out of bounds values : %d %s\n# Avg bus bandwidth    : %g \n#\n", outside,
           outside ? "FAILED" : "OK", total / rows);
  part();
  return outside ? 1 : 0;
}
