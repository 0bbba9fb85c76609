/* video_mp4.c - .mp4 through libavcodec and libavformat.
 *
 * 4:2:0 because browsers play nothing else, sizes padded to even by repeating the last row or column, the
 * index at the front (faststart) so that playing starts before the download ends.  Quality: x264's crf 10
 * gave 52 dB of luma on the moving picture of the tests, far above what the methods differ by;
 * measurements never read this file. */
#include "staged.h"
#include "video.h"

#include <libavcodec/avcodec.h>
#include <libavformat/avformat.h>
#include <libavutil/opt.h>

typedef struct encoder {
    const char *name, *option, *setting; /* a private option of the codec, or NULL */
    int quantiser;                       /* constant MPEG quantiser, or 0 */
} encoder;

/* Best first.  Hardware encoders are left out: they are listed on machines that lack the hardware. */
static const encoder encoders[] = {
    { "libx264", "crf", "10", 0 },
    { "libopenh264", "allow_skip_frames", "0", 0 },
    { "mpeg4", NULL, NULL, 2 },
};
enum { ENCODERS = sizeof encoders / sizeof encoders[0] };

typedef struct movie {
    AVFormatContext *container;
    AVCodecContext *codec;
    AVStream *stream;
    AVFrame *frame;
    AVPacket *packet;
} movie;

const char *clip_mp4_encoder(void)
{
    for (int i = 0; i < ENCODERS; i++)
        if (avcodec_find_encoder_by_name(encoders[i].name)) return encoders[i].name;
    return NULL;
}

static mcsa_status av_fail(mcsa_error *error, int code, const char *path, const char *what)
{
    char reason[AV_ERROR_MAX_STRING_SIZE];
    av_strerror(code, reason, sizeof reason);
    return mcsa_fail(error, code == AVERROR(ENOMEM) ? MCSA_ENOMEM : MCSA_EIO, "cannot write %s: %s: %s", path,
                     what, reason);
}

static int open_codec(movie *m, const encoder *e, const AVCodec *codec, const clip *c)
{
    m->codec = avcodec_alloc_context3(codec);
    if (!m->codec) return AVERROR(ENOMEM);
    m->codec->width = c->width + c->width % 2;
    m->codec->height = c->height + c->height % 2;
    m->codec->pix_fmt = AV_PIX_FMT_YUV420P;
    m->codec->time_base = (AVRational){ 1, CLIP_FRAMES_PER_SECOND };
    m->codec->framerate = (AVRational){ CLIP_FRAMES_PER_SECOND, 1 };
    m->codec->sample_aspect_ratio = (AVRational){ 1, 1 };
    m->codec->color_range = AVCOL_RANGE_MPEG;
    m->codec->colorspace = AVCOL_SPC_SMPTE170M; /* BT.601, as clip_to_ycbcr makes it */
    m->codec->color_primaries = AVCOL_PRI_BT709;
    m->codec->color_trc = AVCOL_TRC_IEC61966_2_1;
    m->codec->bit_rate =
        (int64_t)8 * CLIP_FRAMES_PER_SECOND * m->codec->width * m->codec->height; /* 8 bits a pixel */
    if (m->container->oformat->flags & AVFMT_GLOBALHEADER) m->codec->flags |= AV_CODEC_FLAG_GLOBAL_HEADER;
    if (e->quantiser) {
        m->codec->flags |= AV_CODEC_FLAG_QSCALE;
        m->codec->global_quality = e->quantiser * FF_QP2LAMBDA;
    }
    AVDictionary *settings = NULL;
    if (e->option) av_dict_set(&settings, e->option, e->setting, 0);
    int code = avcodec_open2(m->codec, codec, &settings);
    av_dict_free(&settings);
    if (code < 0) avcodec_free_context(&m->codec);
    return code;
}

/* Opens the first encoder that is there and accepts the size. */
static mcsa_status choose_codec(movie *m, const clip *c, const char *path, mcsa_error *error)
{
    int code = AVERROR_ENCODER_NOT_FOUND;
    for (int i = 0; i < ENCODERS; i++) {
        const AVCodec *codec = avcodec_find_encoder_by_name(encoders[i].name);
        if (!codec) continue;
        code = open_codec(m, &encoders[i], codec, c);
        if (code >= 0) return MCSA_OK;
    }
    return av_fail(error, code, path, "no usable encoder among libx264, libopenh264 and mpeg4");
}

static mcsa_status open_movie(movie *m, const clip *c, const staged *file, mcsa_error *error)
{
    int code = avformat_alloc_output_context2(&m->container, NULL, "mp4", file->part);
    if (code < 0) return av_fail(error, code, file->path, "mp4 container");
    TRY(choose_codec(m, c, file->path, error));
    m->stream = avformat_new_stream(m->container, NULL);
    m->frame = av_frame_alloc();
    m->packet = av_packet_alloc();
    if (!m->stream || !m->frame || !m->packet)
        return av_fail(error, AVERROR(ENOMEM), file->path, "setting up");
    m->stream->time_base = m->codec->time_base;
    m->stream->avg_frame_rate = m->codec->framerate;
    code = avcodec_parameters_from_context(m->stream->codecpar, m->codec);
    if (code < 0) return av_fail(error, code, file->path, "stream parameters");

    m->frame->format = m->codec->pix_fmt;
    m->frame->width = m->codec->width;
    m->frame->height = m->codec->height;
    code = av_frame_get_buffer(m->frame, 0);
    if (code < 0) return av_fail(error, code, file->path, "frame buffer");
    code = avio_open(&m->container->pb, file->part, AVIO_FLAG_WRITE);
    if (code < 0) return av_fail(error, code, file->path, "opening");

    AVDictionary *settings = NULL;
    av_dict_set(&settings, "movflags", "+faststart", 0);
    code = avformat_write_header(m->container, &settings);
    av_dict_free(&settings);
    return code < 0 ? av_fail(error, code, file->path, "header") : MCSA_OK;
}

/* Y' per pixel, Cb and Cr as the mean of 2 x 2. */
static void fill_frame(AVFrame *frame, const clip *c, int t)
{
    const uint8_t *rgb = clip_frame(c, t);
    for (int y = 0; y < frame->height; y += 2) {
        for (int x = 0; x < frame->width; x += 2) {
            int cb = 0, cr = 0;
            for (int i = 0; i < 4; i++) {
                int row = y + i / 2, column = x + i % 2;
                int from_row = row < c->height ? row : c->height - 1;
                int from_column = column < c->width ? column : c->width - 1;
                uint8_t ycbcr[3];
                clip_to_ycbcr(rgb + 3 * ((size_t)from_row * (size_t)c->width + (size_t)from_column), ycbcr);
                frame->data[0][row * frame->linesize[0] + column] = ycbcr[0];
                cb += ycbcr[1];
                cr += ycbcr[2];
            }
            frame->data[1][y / 2 * frame->linesize[1] + x / 2] = (uint8_t)((cb + 2) / 4);
            frame->data[2][y / 2 * frame->linesize[2] + x / 2] = (uint8_t)((cr + 2) / 4);
        }
    }
}

/* Hands one frame to the encoder, or NULL for the end, and the packets that come out to the container. */
static int encode(movie *m, const AVFrame *frame)
{
    int code = avcodec_send_frame(m->codec, frame);
    while (code >= 0) {
        code = avcodec_receive_packet(m->codec, m->packet);
        if (code == AVERROR(EAGAIN) || code == AVERROR_EOF) return 0;
        if (code < 0) break;
        if (m->packet->duration == 0) m->packet->duration = 1; /* else the last frame is shown for no time */
        av_packet_rescale_ts(m->packet, m->codec->time_base, m->stream->time_base);
        m->packet->stream_index = m->stream->index;
        code = av_interleaved_write_frame(m->container, m->packet);
    }
    return code;
}

static mcsa_status write_movie(movie *m, const clip *c, const char *path, mcsa_error *error)
{
    for (int t = 0; t < c->frames; t++) {
        int code = av_frame_make_writable(m->frame); /* the encoder may still hold the one before */
        if (code < 0) return av_fail(error, code, path, "frame buffer");
        fill_frame(m->frame, c, t);
        m->frame->pts = t;
        code = encode(m, m->frame);
        if (code < 0) return av_fail(error, code, path, "encoding");
    }
    int code = encode(m, NULL);
    if (code >= 0) code = av_write_trailer(m->container);
    if (code >= 0) code = avio_closep(&m->container->pb);
    return code < 0 ? av_fail(error, code, path, "finishing") : MCSA_OK;
}

mcsa_status clip_write_mp4(const clip *c, const char *path, mcsa_error *error)
{
    staged file;
    movie m = { 0 };
    TRY(staged_name(&file, path, error));
    av_log_set_level(AV_LOG_ERROR); /* x264 reports its statistics as "info" */
    mcsa_status status = open_movie(&m, c, &file, error);
    if (status == MCSA_OK) status = write_movie(&m, c, path, error);

    avcodec_free_context(&m.codec);
    av_frame_free(&m.frame);
    av_packet_free(&m.packet);
    if (m.container) {
        avio_closep(&m.container->pb);
        avformat_free_context(m.container);
    }
    return staged_close(&file, NULL, status, error);
}
