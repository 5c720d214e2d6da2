// The twin of the driver's data path: what driver.QP.PostSend, PostSendBatch and
// driver.CQ.Poll do ("verbs"), and what queues.SQ and queues.CQ do ("queue"), in C. The same
// checks in the same order, one lock a queue, the same records, the same bytes in the ring,
// the same barriers and doorbell. Rings and doorbell page are shared memory, as the driver's
// are, and nobody serves them: completions are written here, outside of what is timed.
//
// It takes commands on stdin, a line each, and answers with a line:
//
//	run LAYER WORK SHAPE N ROUNDS   ns of the least round of N requests, and the sum of WR IDs completed
//	wqe SHAPE                       the first WQE of a fresh queue, in hex
//
// Layouts: docs/card.md.
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__)
#define compiler() __asm__ volatile("" ::: "memory")
#define to_device() compiler()
#define from_device() compiler()
#define store_load() __asm__ volatile("lock orl $0, (%%rsp)" ::: "memory", "cc")
#elif defined(__aarch64__)
#define to_device() __asm__ volatile("dmb oshst" ::: "memory")
#define from_device() __asm__ volatile("dmb oshld" ::: "memory")
#define store_load() __asm__ volatile("dmb sy" ::: "memory")
#else
#error "amd64 or arm64"
#endif

#define inlined static inline __attribute__((always_inline))
#define apart __attribute__((noinline))
#define unlikely(x) __builtin_expect(!!(x), 0)

enum { BLOCK = 64, SEGMENT = 16, MAX_BLOCKS = 17 };
enum { OP_WRITE = 0, OP_WRITE_IMM = 1, OP_SEND = 2, OP_SEND_IMM = 3, OP_READ = 4, OP_CMP_SWAP = 5, OP_FETCH_ADD = 6 };
enum { F_SIGNALED = 1, F_SOLICITED = 2, F_FENCE = 4, F_INLINE = 8 };
enum { CQE_RECV = 1, NO_SEGMENT = 255, RECV = 128, RECV_WRITE_IMM = 129 };

struct control { uint8_t opcode, flags, segments, reserved3; uint32_t imm, index; uint16_t inline_length, reserved14; };
struct remote { uint64_t addr; uint32_t rkey, reserved12; };
struct atomic_seg { uint64_t swap_add, compare; };
struct data { uint64_t addr; uint32_t length, lkey; };
struct cqe {
	uint32_t qpn, wqe_index, byte_len, imm;
	uint8_t opcode, flags, status, reason;
	uint32_t fault_key;
	uint64_t fault_offset;
	uint8_t fault_segment, aeth;
	uint16_t pkey_index;
	uint32_t src_qpn;
	uint8_t smac[6];
	uint16_t vlan;
	uint64_t time;
	uint32_t reserved56, owner;
};
_Static_assert(sizeof(struct control) == SEGMENT && sizeof(struct remote) == SEGMENT && sizeof(struct data) == SEGMENT, "segments");
_Static_assert(sizeof(struct cqe) == 64 && offsetof(struct cqe, fault_offset) == 0x18 && offsetof(struct cqe, time) == 0x30, "CQE");

// What the card sees of a doorbell domain.
struct domain { volatile uint32_t *sleep; void (*kick)(void); };

// The queues.

struct sq {
	uint8_t *ring;
	uint32_t blocks, mask, producer, seen; // mask in segments
	volatile uint32_t *word;
	struct domain *domain;
	char pad[64];
	uint32_t consumer;
};

struct cq_ring {
	struct cqe *ring;
	uint32_t mask, log, consumer;
	volatile uint32_t *ci;
};

inlined void *seg(struct sq *q, uint32_t at) { return q->ring + (size_t)(at & q->mask) * SEGMENT; }

inlined bool sq_room(struct sq *q, uint32_t blocks)
{
	if (q->producer + blocks - q->seen <= q->blocks)
		return true;
	q->seen = __atomic_load_n(&q->consumer, __ATOMIC_ACQUIRE);
	return q->producer + blocks - q->seen <= q->blocks;
}

// Those that begin a WQE give the place of the next segment.
inlined uint32_t sq_control(struct sq *q, uint8_t op, uint8_t flags, uint8_t segments, uint32_t imm, uint16_t inl)
{
	uint32_t at = q->producer * (BLOCK / SEGMENT);
	*(struct control *)seg(q, at) = (struct control){op, flags, segments, 0, imm, q->producer, inl, 0};
	return at + 1;
}

inlined uint32_t sq_remote(struct sq *q, uint32_t at, uint64_t addr, uint32_t rkey)
{
	*(struct remote *)seg(q, at) = (struct remote){addr, rkey, 0};
	return at + 1;
}

inlined uint32_t sq_atomic(struct sq *q, uint32_t at, uint64_t swap_add, uint64_t compare)
{
	*(struct atomic_seg *)seg(q, at) = (struct atomic_seg){swap_add, compare};
	return at + 1;
}

struct sge { uint64_t addr; uint32_t length, lkey; };

inlined void sq_data(struct sq *q, uint32_t at, const struct sge *s, uint32_t n)
{
	uint32_t first = at & q->mask, room = q->mask + 1 - first;
	struct data *d = (struct data *)q->ring + first;
	if (unlikely(room < n)) {
		for (uint32_t i = 0; i < room; i++)
			d[i] = (struct data){s[i].addr, s[i].length, s[i].lkey};
		s += room;
		n -= room;
		d = (struct data *)q->ring;
	}
	for (uint32_t i = 0; i < n; i++)
		d[i] = (struct data){s[i].addr, s[i].length, s[i].lkey};
}

struct buf { const void *base; size_t len; };

inlined void sq_inline(struct sq *q, uint32_t place, const struct buf *b, size_t n)
{
	size_t size = (size_t)(q->mask + 1) * SEGMENT, off = (size_t)place * SEGMENT;
	for (size_t i = 0; i < n; i++) {
		size_t at = off & (size - 1), first = b[i].len < size - at ? b[i].len : size - at;
		memcpy(q->ring + at, b[i].base, first);
		if (unlikely(first < b[i].len))
			memcpy(q->ring, (const char *)b[i].base + first, b[i].len - first);
		off += b[i].len;
	}
	for (; off % SEGMENT; off++)
		q->ring[off & (size - 1)] = 0;
}

inlined uint32_t sq_commit(struct sq *q, uint32_t blocks)
{
	uint32_t index = q->producer;
	q->producer = index + blocks;
	return index;
}

inlined void sq_ring(struct sq *q)
{
	struct domain *d = q->domain;
	to_device();
	*q->word = q->producer;
	if (!d->sleep)
		return;
	store_load();
	if (unlikely(*d->sleep))
		d->kick();
}

inlined void sq_release(struct sq *q, uint32_t n) { __atomic_store_n(&q->consumer, n, __ATOMIC_RELEASE); }

inlined uint32_t phase(uint32_t n, uint32_t log) { return ~(n >> log) & 1; }

inlined struct cqe *cq_peek(struct cq_ring *q)
{
	struct cqe *e = &q->ring[q->consumer & q->mask];
	if ((*(volatile uint32_t *)&e->owner ^ phase(q->consumer, q->log)) & 1)
		return NULL;
	from_device();
	return e;
}

inlined void cq_publish(struct cq_ring *q)
{
	from_device();
	*q->ci = q->consumer;
}

// The verbs.

inlined void lock(uint32_t *l)
{
	uint32_t free = 0;
	while (unlikely(!__atomic_compare_exchange_n(l, &free, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)))
		free = 0;
}

inlined void unlock(uint32_t *l) { __atomic_store_n(l, 0, __ATOMIC_RELEASE); }

struct send_wr {
	uint64_t wr_id;
	uint8_t opcode, flags;
	const struct sge *sges;
	size_t num_sge;
	const struct buf *inl;
	size_t num_inline;
	struct { uint64_t addr, length; uint32_t rkey; } remote;
	uint32_t imm, invalidate_rkey;
	uint64_t compare_add, swap;
	void *ah;
	uint32_t remote_qpn, remote_qkey;
};

struct wc {
	uint64_t wr_id;
	uint32_t qpn;
	uint8_t status, reason, opcode, flags;
	uint32_t byte_len, imm;
	uint64_t time;
	uint32_t src_qpn;
	uint16_t pkey_index;
	uint8_t aeth;
	uint32_t fault_key;
	uint64_t fault_offset;
	int64_t fault_segment;
};

struct send_record { uint64_t wr_id; uint32_t number, index; uint8_t blocks, op; };
struct recv_record { uint64_t wr_id; uint32_t index; bool posted; };

enum { EAGAIN_ = 1, EINVAL_, ESGES, EINLINE, EOPCODE, EALIGN };

struct cq;
struct qp {
	uint32_t n;
	struct cq *send_cq, *recv_cq;
	uint32_t max_send_sge, max_inline;
	uint32_t sq_lock;
	struct sq sq;
	int send_err;
	struct send_record *sends;
	uint32_t send_mask, send_next, send_done, send_limit;
	struct recv_record *recvs;
	uint32_t recv_mask;
	uint32_t sq_done, rq_done, rq_consumer;
};

struct cq {
	uint32_t lock;
	struct cq_ring q;
	struct qp *qps[64]; // by QPN
	struct qp *last;
	int err;
	bool closed;
	void *verify;
	uint64_t bogus;
};

static apart bool send_room(struct qp *q, uint32_t blocks)
{
	uint32_t c = __atomic_load_n(&q->sq.consumer, __ATOMIC_ACQUIRE);
	q->send_done = c == q->sq.producer ? q->send_next : q->sends[c & q->send_mask].number;
	return q->send_next - q->send_done < q->send_limit && sq_room(&q->sq, blocks);
}

inlined int send_one(struct qp *q, const struct send_wr *wr)
{
	if (unlikely(q->send_err))
		return q->send_err;
	if (unlikely(!wr))
		return EINVAL_;
	uint32_t segs = 1;
	switch (wr->opcode) {
	case OP_SEND: case OP_SEND_IMM:
		break;
	case OP_WRITE: case OP_WRITE_IMM: case OP_READ:
		segs = 2;
		break;
	case OP_CMP_SWAP: case OP_FETCH_ADD:
		if (wr->remote.addr % 8)
			return EALIGN;
		segs = 3;
		break;
	default:
		return EOPCODE;
	}
	uint8_t flags = wr->flags;
	if (unlikely(flags & ~(F_SIGNALED | F_SOLICITED | F_FENCE)))
		return EINVAL_;
	size_t inl = 0;
	if (!wr->num_inline) {
		if (unlikely(wr->num_sge > q->max_send_sge))
			return ESGES;
		segs += wr->num_sge;
	} else {
		for (size_t i = 0; i < wr->num_inline; i++)
			inl += wr->inl[i].len;
		if (unlikely(inl > q->max_inline || wr->num_sge || wr->opcode == OP_READ || segs == 3))
			return EINLINE;
		if (inl) {
			segs += (inl + SEGMENT - 1) / SEGMENT;
			flags |= F_INLINE;
		}
	}
	uint32_t blocks = (segs + 3) / (BLOCK / SEGMENT);
	if (q->send_next - q->send_done >= q->send_limit || !sq_room(&q->sq, blocks))
		if (unlikely(!send_room(q, blocks)))
			return EAGAIN_;
	struct sq *sq = &q->sq;
	uint32_t imm = wr->opcode == OP_SEND_IMM || wr->opcode == OP_WRITE_IMM ? wr->imm : 0;
	uint32_t at = sq_control(sq, wr->opcode, flags, segs, imm, inl);
	switch (wr->opcode) {
	case OP_WRITE: case OP_WRITE_IMM: case OP_READ:
		at = sq_remote(sq, at, wr->remote.addr, wr->remote.rkey);
		break;
	case OP_CMP_SWAP:
		at = sq_remote(sq, at, wr->remote.addr, wr->remote.rkey);
		at = sq_atomic(sq, at, wr->swap, wr->compare_add);
		break;
	case OP_FETCH_ADD:
		at = sq_remote(sq, at, wr->remote.addr, wr->remote.rkey);
		at = sq_atomic(sq, at, wr->compare_add, 0);
	}
	if (inl)
		sq_inline(sq, at, wr->inl, wr->num_inline);
	else
		sq_data(sq, at, wr->sges, wr->num_sge);
	uint32_t index = sq_commit(sq, blocks);
	q->sends[index & q->send_mask] = (struct send_record){wr->wr_id, q->send_next, index, blocks, wr->opcode};
	q->send_next++;
	return 0;
}

apart int post_send(struct qp *q, const struct send_wr *wr)
{
	lock(&q->sq_lock);
	int err = send_one(q, wr);
	if (!err)
		sq_ring(&q->sq);
	unlock(&q->sq_lock);
	return err;
}

apart int post_send_batch(struct qp *q, const struct send_wr *wrs, int n, int *err)
{
	int i = 0;
	*err = 0;
	lock(&q->sq_lock);
	for (; i < n; i++)
		if ((*err = send_one(q, &wrs[i])))
			break;
	if (i)
		sq_ring(&q->sq);
	unlock(&q->sq_lock);
	return i;
}

static apart void fault(struct wc *wc, struct cqe *e, uint8_t status)
{
	uint8_t segment = e->fault_segment;
	wc->status = status;
	wc->reason = e->reason;
	wc->aeth = e->aeth;
	wc->fault_key = e->fault_key;
	wc->fault_offset = e->fault_offset;
	if (segment != NO_SEGMENT)
		wc->fault_segment = segment;
}

// The blocks of the send ring, if its completions come to c.
inlined uint32_t blocks_of(struct qp *q, struct cq *c) { return q && c == q->send_cq ? q->sq.blocks : 0; }

// sends is blocks_of(q, c).
inlined bool complete(struct qp *q, struct cq *c, uint32_t sends, struct cqe *e, struct wc *wc)
{
	uint8_t flags = e->flags, status = e->status;
	uint32_t index = e->wqe_index;
	*wc = (struct wc){0};
	if (!(flags & CQE_RECV)) {
		struct send_record *r = &q->sends[index & q->send_mask];
		if (r->index != index || !r->blocks || index - q->sq_done >= sends)
			return false;
		wc->wr_id = r->wr_id;
		wc->opcode = r->op;
		q->sq_done = index + r->blocks;
	} else {
		struct recv_record *r = &q->recvs[index & q->recv_mask];
		if (c != q->recv_cq || r->index != index || !r->posted)
			return false;
		r->posted = false;
		wc->wr_id = r->wr_id;
		wc->opcode = e->opcode == RECV_WRITE_IMM ? RECV_WRITE_IMM : RECV;
		wc->src_qpn = e->src_qpn;
		wc->pkey_index = e->pkey_index;
		if ((int32_t)(index + 1 - q->rq_done) > 0)
			q->rq_done = index + 1;
	}
	wc->qpn = q->n;
	wc->flags = flags;
	wc->byte_len = e->byte_len;
	wc->imm = e->imm;
	wc->time = e->time;
	wc->fault_segment = -1;
	if (unlikely(status))
		fault(wc, e, status);
	return true;
}

inlined void release(struct qp *q, struct cq *c)
{
	if (c == q->send_cq && q->sq.consumer != q->sq_done)
		sq_release(&q->sq, q->sq_done);
	if (c == q->recv_cq && q->rq_consumer != q->rq_done)
		__atomic_store_n(&q->rq_consumer, q->rq_done, __ATOMIC_RELEASE);
}

apart int poll_cq(struct cq *c, int most, struct wc *wc, int *err)
{
	int n = 0;
	bool took = false;
	*err = 0;
	lock(&c->lock);
	struct qp *qp = c->last;
	uint32_t sends = blocks_of(qp, c);
	if (unlikely(c->closed))
		goto out;
	while (n < most) {
		struct cqe *e = cq_peek(&c->q);
		if (!e)
			break;
		took = true;
		if (unlikely(c->verify))
			abort();
		if (unlikely(!qp || qp->n != e->qpn)) {
			if (qp)
				release(qp, c);
			if (!(qp = c->qps[e->qpn % 64]) || qp->n != e->qpn) {
				c->q.consumer++;
				qp = NULL;
				continue;
			}
			sends = blocks_of(qp, c);
		}
		if (complete(qp, c, sends, e, &wc[n]))
			n++;
		else
			c->bogus++;
		c->q.consumer++;
	}
	if (took) {
		if (qp)
			release(qp, c);
		c->last = qp;
		cq_publish(&c->q);
	}
out:
	if (!n)
		*err = c->err;
	unlock(&c->lock);
	return n;
}

// The rig.

enum { QPN = 2, BATCH = 32, MOST = 4096 };

static struct domain domain;
static struct cq cq;
static struct qp qp;
static uint32_t sent;     // number of the next completion that the card would write
static uint32_t sent_at;  // block of its WQE
static struct sge sges[63];
static char payload[64];
static struct buf inl = {payload, sizeof payload};

static void die(const char *what)
{
	perror(what);
	exit(1);
}

static void nobody(void) { die("the card does not sleep"); }

static void *shared(size_t size)
{
	int fd = memfd_create("twin", MFD_CLOEXEC);
	if (fd < 0 || ftruncate(fd, size))
		die("memfd");
	void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
	if (p == MAP_FAILED)
		die("mmap");
	close(fd);
	return p;
}

static uint32_t round_up(uint32_t n)
{
	uint32_t p = 1;
	while (p < n)
		p *= 2;
	return p;
}

// A shape is a work request: its SGEs, or 64 bytes inline.
static uint32_t shape_sges;
static bool shape_inline;

static uint32_t wqe_segments(void) { return 1 + (shape_inline ? sizeof payload / SEGMENT : shape_sges); }

static void setup(const char *shape, uint32_t n)
{
	static size_t ring_size, cq_size, records;
	shape_inline = !strcmp(shape, "inline");
	shape_sges = shape_inline ? 0 : (uint32_t)atoi(shape);
	uint32_t data = shape_inline ? sizeof payload / SEGMENT : shape_sges;
	uint32_t each = ((3 + data) * SEGMENT + BLOCK - 1) / BLOCK;
	uint32_t blocks = round_up(n * each < 32 ? 32 : n * each);
	if (qp.sq.ring) {
		munmap(qp.sq.ring, ring_size);
		munmap(cq.q.ring, cq_size);
		munmap(qp.sends, records);
	} else {
		volatile uint32_t *page = shared(3 * 4096);
		domain = (struct domain){page, nobody};
		qp.sq.word = page + 1024 + 64;
		cq.q.ci = page + 2048 + 96;
	}
	uint8_t *ring = shared(ring_size = (size_t)blocks * BLOCK);
	uint32_t entries = round_up(n);
	struct cqe *cqes = shared(cq_size = (size_t)entries * sizeof *cqes < 4096 ? 4096 : (size_t)entries * sizeof *cqes);
	void *sends = mmap(NULL, records = (size_t)blocks * sizeof *qp.sends, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
	if (sends == MAP_FAILED)
		die("mmap");
	volatile uint32_t *word = qp.sq.word, *ci = cq.q.ci;
	memset(&qp, 0, sizeof qp);
	memset(&cq, 0, sizeof cq);
	qp.n = QPN;
	qp.send_cq = qp.recv_cq = &cq;
	qp.max_send_sge = shape_inline ? 1 : shape_sges;
	qp.max_inline = shape_inline ? sizeof payload : 0;
	qp.sq = (struct sq){.ring = ring, .blocks = blocks, .mask = blocks * (BLOCK / SEGMENT) - 1, .word = word, .domain = &domain};
	qp.sends = sends;
	qp.send_mask = blocks - 1;
	qp.send_limit = n;
	cq.q = (struct cq_ring){.ring = cqes, .mask = entries - 1, .log = __builtin_ctz(entries), .ci = ci};
	cq.qps[QPN] = &qp;
	sent = sent_at = 0;
	for (uint32_t i = 0; i < 63; i++)
		sges[i] = (struct sge){0x100000000 + 4096 * i, 64 + i, 0x1234500 + i};
	for (uint32_t i = 0; i < sizeof payload; i++)
		payload[i] = (char)(i * 7);
}

// The card's part: n completions, of the work requests that come next.
static void card(uint32_t n)
{
	uint32_t blocks = (wqe_segments() + 3) / 4;
	for (; n; n--, sent++, sent_at += blocks) {
		struct cqe *e = &cq.q.ring[sent & cq.q.mask];
		*e = (struct cqe){.qpn = QPN, .wqe_index = sent_at, .fault_segment = NO_SEGMENT, .time = sent, .owner = phase(sent, cq.q.log)};
	}
}

static struct send_wr request(uint64_t id)
{
	struct send_wr wr = {.wr_id = id, .opcode = OP_SEND, .flags = F_SIGNALED, .sges = sges, .num_sge = shape_sges};
	if (shape_inline)
		wr.sges = NULL, wr.num_sge = 0, wr.inl = &inl, wr.num_inline = 1;
	return wr;
}

apart bool bare_post(struct sq *q, const struct sge *s, uint32_t n, const struct buf *b)
{
	uint32_t segs = 1 + (b ? (uint32_t)(b->len + SEGMENT - 1) / SEGMENT : n), blocks = (segs + 3) / (BLOCK / SEGMENT);
	if (!sq_room(q, blocks))
		return false;
	uint32_t at = sq_control(q, OP_SEND, b ? F_SIGNALED | F_INLINE : F_SIGNALED, segs, 0, b ? b->len : 0);
	if (b)
		sq_inline(q, at, b, 1);
	else
		sq_data(q, at, s, n);
	sq_commit(q, blocks);
	return true;
}

apart int bare_poll(struct cq_ring *q, int most, uint64_t *sum)
{
	int n = 0;
	for (; n < most; n++) {
		struct cqe *e = cq_peek(q);
		if (!e)
			break;
		*sum += e->wqe_index;
		q->consumer++;
	}
	if (n)
		cq_publish(q);
	return n;
}

static uint64_t now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static struct wc wcs[MOST];
static struct send_wr batch[BATCH];

static void must(bool ok)
{
	if (!ok)
		die("a request or a completion was refused");
}

// One round; it gives the ns of what is timed.
static uint64_t verbs_round(const char *work, uint32_t n, uint64_t *sum)
{
	int err;
	uint64_t start, took;
	if (!strcmp(work, "cycle")) { // completions stand ready: poll takes those of what was just posted
		card(n);
		start = now();
		for (uint32_t i = 0; i < n; i += BATCH) {
			for (int k = 0; k < BATCH; k++)
				batch[k].wr_id = i + k;
			must(post_send_batch(&qp, batch, BATCH, &err) == BATCH && poll_cq(&cq, BATCH, wcs, &err) == BATCH);
			*sum += wcs[0].wr_id + wcs[BATCH - 1].wr_id;
		}
		return now() - start;
	}
	struct send_wr wr = request(0);
	start = now();
	for (uint32_t i = 0; i < n; i++) {
		wr.wr_id = i;
		must(!post_send(&qp, &wr));
	}
	took = now() - start;
	card(n);
	if (!strcmp(work, "post")) {
		must(poll_cq(&cq, n, wcs, &err) == (int)n);
		*sum += wcs[n - 1].wr_id;
		return took;
	}
	int at = atoi(work + 4); // poll1, poll16
	start = now();
	for (uint32_t i = 0; i < n; i += at) {
		must(poll_cq(&cq, at, wcs, &err) == at);
		*sum += wcs[at - 1].wr_id;
	}
	return now() - start;
}

static uint64_t queue_round(const char *work, uint32_t n, uint64_t *sum)
{
	uint64_t start, took;
	const struct buf *b = shape_inline ? &inl : NULL;
	uint32_t blocks = (wqe_segments() + 3) / 4;
	if (!strcmp(work, "cycle")) {
		card(n);
		start = now();
		for (uint32_t i = 0; i < n; i += BATCH) {
			for (int k = 0; k < BATCH; k++)
				must(bare_post(&qp.sq, sges, shape_sges, b));
			sq_ring(&qp.sq);
			must(bare_poll(&cq.q, BATCH, sum) == BATCH);
			sq_release(&qp.sq, qp.sq.consumer + BATCH * blocks);
		}
		return now() - start;
	}
	start = now();
	for (uint32_t i = 0; i < n; i++) {
		must(bare_post(&qp.sq, sges, shape_sges, b));
		sq_ring(&qp.sq);
	}
	took = now() - start;
	card(n);
	int at = strcmp(work, "post") ? atoi(work + 4) : (int)n;
	start = now();
	for (uint32_t i = 0; i < n; i += at)
		must(bare_poll(&cq.q, at, sum) == at);
	uint64_t polled = now() - start;
	sq_release(&qp.sq, qp.sq.producer);
	return strcmp(work, "post") ? polled : took;
}

int main(void)
{
	char line[256], layer[32], work[32], shape[32];
	unsigned n, rounds;
	setvbuf(stdout, NULL, _IOLBF, 0);
	while (fgets(line, sizeof line, stdin)) {
		if (sscanf(line, "wqe %31s", shape) == 1) {
			setup(shape, BATCH);
			struct send_wr wr = request(7);
			must(!post_send(&qp, &wr));
			for (uint32_t i = 0; i < (wqe_segments() + 3) / 4 * BLOCK; i++)
				printf("%02x", qp.sq.ring[i]);
			printf("\n");
			continue;
		}
		if (sscanf(line, "run %31s %31s %31s %u %u", layer, work, shape, &n, &rounds) != 5 || n % BATCH || !n || n > MOST || !rounds) {
			fprintf(stderr, "twin: cannot read %s", line);
			return 2;
		}
		setup(shape, n);
		for (int k = 0; k < BATCH; k++)
			batch[k] = request(k);
		uint64_t best = UINT64_MAX, sum = 0;
		for (unsigned r = 0; r < rounds; r++) {
			uint64_t t = strcmp(layer, "verbs") ? queue_round(work, n, &sum) : verbs_round(work, n, &sum);
			if (t < best)
				best = t;
		}
		must(!cq.bogus);
		printf("%" PRIu64 " %" PRIu64 "\n", best, sum);
	}
	return 0;
}
